#include "runtime/layers/encoder_exit.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ir/error.h"
#include "runtime/layers/blocks.h"
#include "runtime/layers/exit_confidence.h"

namespace quern::runtime {
namespace {

const Value* output_value(const Graph& graph, const std::string& name) {
  for (const GraphOutput& output : graph.outputs()) {
    if (output.name == name) return output.value;
  }
  throw_error(ErrorCode::Internal, "no output '", name, "'");
}

std::vector<const Value*> values_at(const LayerBoundary& boundary) {
  std::vector<const Value*> values = {boundary.stream};
  if (boundary.normed != nullptr) values.push_back(boundary.normed);
  return values;
}

Tensor dense_floats(const RuntimeValue& value) {
  const Tensor tensor = value.dense();
  return tensor.dtype() == DType::F32 ? tensor : tensor.cast(DType::F32);
}

}  // namespace

bool has_batch(const Value& input) {
  return input.has_shape() && !input.shape().empty() && !input.shape().front().is_constant();
}

Tensor take_rows(const Tensor& tensor, std::span<const int64_t> rows) {
  Shape shape = tensor.shape();
  const int64_t had = std::max<int64_t>(1, shape.front());
  shape.front() = static_cast<int64_t>(rows.size());
  Tensor taken = Tensor::zeros(tensor.dtype(), std::move(shape));
  const auto each = static_cast<size_t>(tensor.byte_size() / had);
  std::byte* to = taken.mutable_bytes();
  for (const int64_t row : rows) {
    std::memcpy(to, tensor.bytes() + static_cast<size_t>(row) * each, each);
    to += each;
  }
  return taken;
}

Bindings bind_inputs(const Graph& graph, const NamedValues& inputs) {
  Bindings bindings;
  for (const Value* input : graph.inputs()) {
    const auto given = inputs.find(input->name());
    if (given == inputs.end() || given->second.tensor() == nullptr)
      throw_error(ErrorCode::BadData, "input '", input->name(), "' is missing, or no tensor");
    const Tensor& tensor = *given->second.tensor();
    bool fits = input->dtype() == DType::Undefined || input->dtype() == tensor.dtype();
    if (input->has_shape()) {
      fits = fits && input->shape().size() == tensor.shape().size();
      for (size_t i = 0; fits && i < tensor.shape().size(); ++i)
        fits = input->shape()[i].as_constant().value_or(tensor.shape()[i]) == tensor.shape()[i];
    }
    if (!fits) {
      throw_error(ErrorCode::BadData, "input '", input->name(), "' is ", to_string(given->second),
                  ", expected ", to_string(input->type()));
    }
    bindings[input] = given->second;
  }
  return bindings;
}

EarlyExitEncoder::EarlyExitEncoder(std::shared_ptr<const Graph> graph, const ExitRule& rule)
    : graph_(std::move(graph)), rule_(rule), layers_(find_encoder_layers(*graph_)) {
  if (rule.confidence == ExitConfidence::Saturation || rule.confidence == ExitConfidence::Classifier) {
    throw_error(ErrorCode::InvalidArgument, "exits by ", to_string(rule.confidence),
                " are for decoders; encoders take margin, max-probability, entropy or fixed");
  }
  if (rule.decay > 0)
    throw_error(ErrorCode::InvalidArgument, "a threshold that decays over a text is for decoders");
  rule_.layers = exits_in_use(*graph_, rule, layers_.layers());
  make_parts();
  statistics_.layers = layers_.layers();
  statistics_.exit_after = rule_.layers;
  statistics_.exit_after.push_back(layers_.layers());
  statistics_.tokens.resize(statistics_.exit_after.size());
}

void EarlyExitEncoder::make_parts() {
  const std::vector<Value*>& inputs = graph_->inputs();
  std::vector<const Value*> given(inputs.begin(), inputs.end());
  std::vector<const Value*> before;
  for (size_t i = 0; i <= exits(); ++i) {
    const bool last = i == exits();
    std::vector<const Value*> wanted = {last ? layers_.logits->value
                                             : output_value(*graph_, exit_output(rule_.layers[i]))};
    if (!last) {
      handed_on_.push_back(values_at(layers_.at(rule_.layers[i])));
      wanted.insert(wanted.end(), handed_on_.back().begin(), handed_on_.back().end());
    }
    std::vector<const Value*> all = given;
    all.insert(all.end(), before.begin(), before.end());
    parts_.emplace_back(*graph_, all, wanted);
    if (!last) before = handed_on_.back();
  }
}

// Drops the rows of sequences that have left.
void EarlyExitEncoder::keep(Going& going, const std::vector<int64_t>& rows) const {
  for (auto& [value, data] : going.values) {
    const bool is_input = value->producer() == nullptr;
    if (data.tensor() == nullptr || (is_input && !has_batch(*value))) continue;
    data = take_rows(*data.tensor(), rows);
  }
  std::vector<size_t> left;
  for (const int64_t row : rows) left.push_back(going.sequences[static_cast<size_t>(row)]);
  going.sequences = std::move(left);
}

// Finishes what is sure enough behind this exit, or behind the last layer.
void EarlyExitEncoder::leave(size_t exit, const Tensor& logits, Going& going) {
  const auto count = static_cast<int64_t>(going.sequences.size());
  if (logits.rank() != 2 || logits.dim(0) != count) {
    throw_error(ErrorCode::BadData, "the logits behind layer ", statistics_.exit_after[exit],
                " have the shape ", to_string(logits.shape()), " for ", count, " sequences");
  }
  const auto width = static_cast<size_t>(logits.dim(1));
  std::vector<int64_t> staying;
  for (int64_t row = 0; row < count; ++row) {
    const auto own = logits.data<float>().subspan(static_cast<size_t>(row) * width, width);
    Result& result = results_[going.sequences[static_cast<size_t>(row)]];
    const bool last = exit == exits();
    if (!last) result.confidences.push_back(confidence_of(rule_.confidence, own));
    if (!last && !(result.confidences.back() >= rule_.threshold)) {
      staying.push_back(row);
      continue;
    }
    result.logits.assign(own.begin(), own.end());
    result.layers = statistics_.exit_after[exit];
  }
  if (staying.size() != going.sequences.size()) keep(going, staying);
}

std::span<const EarlyExitEncoder::Result> EarlyExitEncoder::run(const NamedValues& inputs,
                                                                const RunOptions& options) {
  Going going{.sequences = {}, .values = bind_inputs(*graph_, inputs)};
  const Tensor& ids = *going.values.at(layers_.ids).tensor();
  going.sequences.resize(static_cast<size_t>(ids.rank() > 0 ? ids.dim(0) : 1));
  std::iota(going.sequences.begin(), going.sequences.end(), 0);
  results_.assign(going.sequences.size(), {});
  for (size_t exit = 0; !going.sequences.empty(); ++exit) {
    std::vector<RuntimeValue> made = parts_[exit].run(going.values, options);
    for (size_t i = 1; i < made.size(); ++i) going.values[handed_on_[exit][i - 1]] = made[i].dense();
    if (exit > 0) {
      // What stood before this part is not needed any more.
      for (const Value* old : handed_on_[exit - 1]) going.values.erase(old);
    }
    leave(exit, dense_floats(made.front()), going);
    if (exit == exits()) break;
  }
  for (const Result& result : results_) {
    const auto exit = std::find(statistics_.exit_after.begin(), statistics_.exit_after.end(), result.layers);
    ++statistics_.tokens[static_cast<size_t>(exit - statistics_.exit_after.begin())];
  }
  return results_;
}

}  // namespace quern::runtime
