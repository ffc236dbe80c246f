#include "passes/heads/trained_medusa.h"

#include <algorithm>
#include <cmath>

#include "ir/error.h"
#include "runtime/decoder/hidden_states.h"

namespace quern::passes {
namespace {

using calibrate::train::Head;
using calibrate::train::Parameter;
using calibrate::train::ResidualSilu;

Tensor floats_of(const Value& weight) {
  if (const Tensor* tensor = weight.tensor()) return tensor->cast(DType::F32);
  if (const QuantizedTensor* quantized = weight.quantized()) return dequantize(*quantized);
  if (const PackedTensor* packed = weight.packed()) return packed->dequantize();
  throw_error(ErrorCode::InvalidArgument, "the head's weight '", weight.name(),
              "' is an expression; materialize the weights first");
}

void begin_with(ResidualSilu& form, const MedusaHead& head, size_t number) {
  for (size_t j = 0; j < form.blocks().size(); ++j) {
    const MedusaHead::Block& from = head.blocks[j];
    Parameter& weight = form.blocks()[j].weight;
    if (from.weight.shape() != weight.shape) {
      throw_error(ErrorCode::InvalidArgument, "head ", number, " to begin with is of width ",
                  from.weight.dim(0), ", the model of ", weight.shape[0]);
    }
    weight.value = from.weight.to_floats();
    if (from.bias) form.blocks()[j].bias.value = from.bias->to_floats();
  }
}

}  // namespace

std::vector<Head> medusa_heads_to_train(const Graph& graph, const MedusaTraining& options,
                                        const std::vector<MedusaHead>& from) {
  const runtime::HiddenStates states = runtime::find_hidden_states(graph);
  const Tensor projection = floats_of(*states.head->input(1));
  const auto shared = std::make_shared<Parameter>(Parameter::frozen("projection", projection));
  const size_t count = from.empty() ? static_cast<size_t>(options.heads) : from.size();
  std::vector<Head> heads;
  for (size_t k = 0; k < count; ++k) {
    const int64_t blocks = from.empty() ? options.blocks : static_cast<int64_t>(from[k].blocks.size());
    auto form = std::make_unique<ResidualSilu>(std::to_string(k), projection.dim(1), blocks);
    if (!from.empty()) begin_with(*form, from[k], k);
    const bool given = !from.empty() && from[k].projection.has_value();
    if (given && from[k].projection->shape() != projection.shape()) {
      throw_error(ErrorCode::InvalidArgument, "the projection of head ", k, " has shape ",
                  to_string(from[k].projection->shape()), ", the model's ", to_string(projection.shape()));
    }
    Head head{.name = concat("head ", k), .form = std::move(form), .projection = shared};
    head.trains_projection = given || options.own_projections;
    if (head.trains_projection) {
      head.projection = std::make_shared<Parameter>(concat(k, ".", blocks, ".weight"),
                                                    given ? *from[k].projection : projection, true);
    }
    head.ahead = static_cast<int64_t>(k) + 2;
    head.weight = std::pow(options.decay, static_cast<double>(k + 1));
    heads.push_back(std::move(head));
  }
  return heads;
}

std::vector<MedusaHead> trained_medusa_heads(std::span<Head> heads) {
  std::vector<MedusaHead> all;
  for (Head& head : heads) {
    MedusaHead& out = all.emplace_back();
    for (ResidualSilu::Block& block : dynamic_cast<ResidualSilu&>(*head.form).blocks())
      out.blocks.push_back({.weight = block.weight.tensor(), .bias = block.bias.tensor()});
    if (head.trains_projection) out.projection = head.projection->tensor();
  }
  return all;
}

}  // namespace quern::passes
