#include <algorithm>

#include "calibrate/graph_model.h"

namespace quern::calibrate {
namespace {

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// A dimension of a past that nothing has been kept in yet.
int64_t empty_past_dim(const Dim& dim, size_t axis, size_t rank, int64_t batch) {
  if (const auto constant = dim.as_constant()) return *constant;
  const std::string text = dim.to_string();
  if (contains(text, "past")) return 0;
  if (axis == 0) return batch;
  return axis + 2 == rank ? 0 : 1;
}

// Element i is value(i), in the dtype that the graph wants.
template <class Function>
Tensor filled(DType dtype, Shape shape, Function&& value) {
  Tensor tensor = Tensor::zeros(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(value(i)));
  return tensor;
}

}  // namespace

TokenInputs::Role TokenInputs::role_of(const Value& input) {
  const std::string& name = input.name();
  const bool number = is_integer(input.dtype()) || is_floating(input.dtype()) || input.dtype() == DType::Bool;
  const size_t rank = input.has_shape() ? input.shape().size() : 2;
  if (contains(name, "use_cache")) return Role::UsePast;
  if (contains(name, "past") && rank >= 3) return Role::Past;
  if (contains(name, "mask") && number && rank <= 2) return Role::Mask;
  if (contains(name, "position") && is_integer(input.dtype())) return Role::Positions;
  if ((contains(name, "token_type") || contains(name, "segment")) && is_integer(input.dtype()))
    return Role::TokenTypes;
  if (is_integer(input.dtype()) && rank >= 1 && rank <= 2) return Role::Ids;
  throw_error(ErrorCode::Unsupported, "input '", name, "' (", to_string(input.type()),
              ") is nothing that token ids can fill; give the model's inputs as arrays instead (.npz)");
}

TokenInputs::TokenInputs(const Graph& graph) {
  for (const Value* input : graph.inputs()) {
    const Role role = role_of(*input);
    if (role == Role::Ids) {
      if (ids_ != nullptr) {
        throw_error(ErrorCode::Unsupported, "inputs '", ids_->name(), "' and '", input->name(),
                    "' could both be the token ids; give the model's inputs as arrays instead (.npz)");
      }
      ids_ = input;
    }
    inputs_.push_back({input, role});
  }
  if (ids_ == nullptr) {
    throw_error(ErrorCode::Unsupported, "graph '", graph.name(),
                "' has no input that could be token ids; give its inputs as arrays (.npz)");
  }
  if (ids_->has_shape()) fixed_length_ = ids_->shape().back().as_constant().value_or(0);
}

Tensor TokenInputs::make(const Input& input, Sequences sequences, int64_t length) const {
  const DType dtype = input.value->dtype();
  const auto given = static_cast<int64_t>(sequences.front().size());
  const auto batch = static_cast<int64_t>(sequences.size());
  const bool flat = input.value->has_shape() && input.value->shape().size() == 1;
  const Shape row = flat ? Shape{batch * length} : Shape{batch, length};
  switch (input.role) {
    case Role::Ids:
      return filled(dtype, row, [&](int64_t i) {
        const std::span<const int64_t> ids = sequences[static_cast<size_t>(i / length)];
        return i % length < given ? ids[static_cast<size_t>(i % length)] : 0;
      });
    case Role::Mask:
      return filled(dtype, row, [&](int64_t i) { return i % length < given ? 1 : 0; });
    case Role::Positions:
      return filled(dtype, row, [&](int64_t i) { return i % length; });
    case Role::TokenTypes:
      return Tensor::zeros(dtype, row);
    case Role::UsePast:
      return Tensor::zeros(dtype, {1});
    case Role::Past:
      break;
  }
  if (!input.value->has_shape()) {
    throw_error(ErrorCode::Unsupported, "input '", input.value->name(),
                "' states no shape; an empty past needs one");
  }
  const SymShape& stated = input.value->shape();
  Shape shape;
  for (size_t axis = 0; axis < stated.size(); ++axis) {
    shape.push_back(empty_past_dim(stated[axis], axis, stated.size(), batch));
  }
  return Tensor::zeros(dtype, std::move(shape));
}

bool TokenInputs::takes_batches() const {
  return ids_->has_shape() && ids_->shape().size() == 2 && !ids_->shape().front().as_constant();
}

runtime::NamedValues TokenInputs::fill(std::span<const int64_t> ids) const {
  return fill(Sequences(&ids, 1));
}

runtime::NamedValues TokenInputs::fill(std::span<const std::span<const int64_t>> sequences) const {
  const std::span<const int64_t> ids = sequences.front();
  const auto given = static_cast<int64_t>(ids.size());
  if (fixed_length_ > 0 && given > fixed_length_) {
    throw_error(ErrorCode::BadData, "a sequence of ", given, " tokens is longer than the ", fixed_length_,
                " that the model takes");
  }
  const int64_t length = fixed_length_ > 0 ? fixed_length_ : given;
  runtime::NamedValues values;
  for (const Input& input : inputs_) values[input.value->name()] = make(input, sequences, length);
  return values;
}

}  // namespace quern::calibrate
