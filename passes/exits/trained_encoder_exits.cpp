#include "passes/exits/trained_encoder_exits.h"

#include "calibrate/train/dense_form.h"
#include "formats/safetensors/safetensors.h"
#include "ir/error.h"
#include "passes/exits/encoder_head.h"
#include "passes/exits/weight_floats.h"

namespace quern::passes {
namespace {

using calibrate::train::Activation;
using calibrate::train::DenseForm;
using calibrate::train::DenseLayer;
using calibrate::train::Head;
using calibrate::train::Parameter;

[[noreturn]] void not_dense(const Node& node) {
  throw_error(ErrorCode::Unsupported, describe(node),
              ": only linear layers with Tanh, Relu or Gelu between them are trained as an exit's head");
}

Activation activation_of(const Node& node) {
  if (node.is("Tanh")) return Activation::Tanh;
  if (node.is("Relu")) return Activation::Relu;
  if (node.op() == "FastGelu") return Activation::GeluTanh;
  if (node.op() != "Gelu") not_dense(node);
  return node.string_attribute("approximate", "none") == "tanh" ? Activation::GeluTanh : Activation::Gelu;
}

// What stands between a linear layer and what reads it.
Activation activation_behind(const Node& linear, const Value* reader) {
  if (linear.output() == reader) return Activation::None;
  const Node* node = reader->producer();
  if (node->input(0) != linear.output()) not_dense(*node);
  return activation_of(*node);
}

std::vector<DenseLayer> dense_layers(const EncoderHead& head) {
  std::vector<DenseLayer> layers;
  for (size_t i = 0; i < head.linears.size(); ++i) {
    const Node& linear = *head.linears[i];
    DenseLayer& layer = layers.emplace_back();
    layer.weight = weight_floats(*linear.input(1));
    if (linear.input(2) != nullptr) layer.bias = weight_floats(*linear.input(2));
    if (i + 1 < head.linears.size())
      layer.activation = activation_behind(linear, head.linears[i + 1]->input(0));
  }
  return layers;
}

Head head_of(int64_t layer, int64_t width, std::vector<DenseLayer> layers, const ExitTraining& options) {
  const std::string name = concat("exits.", layer);
  const std::string last = concat(name, ".linear.", layers.size() - 1);
  const DenseLayer classifier = std::move(layers.back());
  layers.pop_back();
  auto form = std::make_unique<DenseForm>(name, width, std::move(layers), options.rank,
                                          options.seed + static_cast<uint64_t>(layer));
  if (form->output_width() != classifier.weight.dim(1)) {
    throw_error(ErrorCode::Unsupported, "the classifier reads ", classifier.weight.dim(1), " features, not ",
                form->output_width());
  }
  Head head{.name = concat("exit ", layer),
            .form = std::move(form),
            .projection = std::make_shared<Parameter>(last + ".weight", classifier.weight, true)};
  if (classifier.bias) head.bias = std::make_shared<Parameter>(last + ".bias", *classifier.bias, false);
  head.trains_projection = true;
  return head;
}

}  // namespace

EncoderExitHeads encoder_exits_to_train(const Graph& graph, const ExitTraining& options) {
  EncoderExitHeads result;
  result.graph = graph.clone();
  const runtime::EncoderLayers layers = runtime::find_encoder_layers(*result.graph);
  const EncoderHead head = find_encoder_head(layers);
  if (!head.pooled->has_shape() || head.pooled->shape().size() != 2 ||
      head.linears.back()->output() != layers.logits->value) {
    throw_error(ErrorCode::Unsupported, "the head's first linear layer reads '", head.pooled->name(), "' (",
                to_string(head.pooled->type()),
                "), or its last one does not give the logits; only heads on one "
                "state of each text are trained");
  }
  const std::vector<DenseLayer> dense = dense_layers(head);
  Rewriter rewriter(*result.graph);
  for (const int64_t layer : options.layers) {
    if (layer < 1 || layer >= layers.layers()) {
      throw_error(ErrorCode::InvalidArgument, "an exit behind layer ", layer, " of a model of ",
                  layers.layers(), " layers");
    }
    runtime::FlowCopy copy(rewriter, layers);
    copy.put_at(layers.boundaries.back(), layers.at(layer).stream);
    Head made = head_of(layer, dense.front().weight.dim(1), dense, options);
    made.source = static_cast<int>(result.sources.size());
    if (options.from_final_layer) {
      made.teacher = static_cast<int>(options.layers.size());
      made.teacher_gives_logits = true;
    }
    result.heads.push_back(std::move(made));
    result.sources.push_back(concat("exit_pooled.", layer));
    rewriter.add_output(copy.of(head.pooled), result.sources.back());
  }
  result.sources.push_back(layers.logits->name);
  rewriter.commit();
  return result;
}

void write_encoder_exit_heads(const std::string& path, std::span<Head> heads) {
  safetensors::File file;
  for (Head& head : heads) {
    for (const Parameter* parameter : head.trained()) file.tensors[parameter->name] = parameter->tensor();
  }
  safetensors::write(path, file);
}

}  // namespace quern::passes
