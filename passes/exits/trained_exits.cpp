#include "passes/exits/trained_exits.h"

#include "calibrate/train/exit_form.h"
#include "formats/safetensors/safetensors.h"
#include "ir/error.h"
#include "passes/exits/weight_floats.h"
#include "runtime/decoder/hidden_states.h"
#include "runtime/layers/blocks.h"

namespace quern::passes {
namespace {

using calibrate::train::ExitForm;
using calibrate::train::Head;
using calibrate::train::Parameter;

// The final norm: what exit heads begin with.
struct FinalNorm {
  bool layer_norm = false;
  double epsilon = 1e-5;
  Tensor weight;
  std::optional<Tensor> bias;
};

FinalNorm final_norm(const Node& node) {
  const bool skip = node.op().starts_with("Skip");
  FinalNorm norm;
  norm.layer_norm = node.op() == "LayerNormalization" || node.op() == "SkipLayerNormalization";
  norm.epsilon = node.float_attribute("epsilon", skip ? 1e-12f : 1e-5f);
  const size_t weight = skip ? 2 : 1;
  norm.weight = weight_floats(*node.input(weight));
  if (norm.layer_norm && node.input(weight + 1) != nullptr)
    norm.bias = weight_floats(*node.input(weight + 1));
  return norm;
}

}  // namespace

ExitHeads exit_heads_to_train(const Graph& graph, const ExitTraining& options) {
  const runtime::HiddenStates states = runtime::find_hidden_states(graph);
  const runtime::LayerBoundaries layers = runtime::find_layers(graph);
  if (states.final_norm == nullptr)
    throw_error(ErrorCode::Unsupported, "the head reads no norm of the stream: there is nothing to train");
  const FinalNorm norm = final_norm(*states.final_norm);
  const auto projection =
      std::make_shared<Parameter>(Parameter::frozen("projection", weight_floats(*states.head->input(1))));
  ExitHeads result;
  for (const int64_t layer : options.layers) {
    if (layer < 1 || layer >= layers.layers()) {
      throw_error(ErrorCode::InvalidArgument, "an exit behind layer ", layer, " of a model of ",
                  layers.layers(), " layers");
    }
    const ExitForm::Options form{.layer_norm = norm.layer_norm,
                                 .epsilon = norm.epsilon,
                                 .rank = options.rank,
                                 .seed = options.seed + static_cast<uint64_t>(layer)};
    Head head{.name = concat("exit ", layer),
              .form = std::make_unique<ExitForm>(concat("exits.", layer), norm.weight,
                                                 norm.bias ? &*norm.bias : nullptr, form),
              .projection = projection};
    head.source = static_cast<int>(result.sources.size());
    if (options.from_final_layer) head.teacher = static_cast<int>(options.layers.size());
    result.sources.push_back(layers.boundaries[static_cast<size_t>(layer)].stream->name());
    result.heads.push_back(std::move(head));
  }
  result.sources.push_back(states.after_final_norm->name());
  return result;
}

void write_exit_heads(const std::string& path, std::span<Head> heads) {
  safetensors::File file;
  for (Head& head : heads) {
    for (const Parameter* parameter : head.form->parameters())
      file.tensors[parameter->name] = parameter->tensor();
  }
  safetensors::write(path, file);
}

}  // namespace quern::passes
