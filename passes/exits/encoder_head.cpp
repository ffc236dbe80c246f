#include "passes/exits/encoder_head.h"

#include <algorithm>

#include "ir/error.h"
#include "ir/schema.h"

namespace quern::passes {
namespace {

using runtime::EncoderLayers;
using runtime::FlowCopy;

// The shape of a weight, whatever it is stored as.
Shape shape_of(const Value& weight) {
  Shape shape;
  for (const Dim& dim : weight.shape()) shape.push_back(dim.constant());
  return shape;
}

class Inserter {
 public:
  Inserter(Rewriter& rewriter, const EncoderLayers& layers, const std::string& head,
           const safetensors::File* file)
      : rewriter_(rewriter),
        layers_(layers),
        head_(head),
        file_(file),
        width_(runtime::stream_width(layers)),
        parts_(find_encoder_head(layers)) {}

  void add(int64_t layer) {
    ExitWeights own;
    if (file_ != nullptr) own = read_exit_weights(*file_, layer, head_, width_, parts_.linears.size());
    Value* stream = layers_.at(layer).stream;
    FlowCopy copy(rewriter_, layers_);
    copy.put_at(final_boundary(), stream);
    Value* pooled = copy.of(parts_.pooled);
    if (own.norm || head_ != "shared") own_norm(layer, own, pooled, stream);
    if (own.down) copy.put(add_adapter(rewriter_, layer, own, pooled), parts_.pooled);
    Value* logits = copy.of(layers_.logits->value);
    for (size_t i = 0; i < own.linears.size(); ++i)
      own_linear(layer, i, own.linears[i], copy.made(parts_.linears[i]->output())->producer());
    rewriter_.add_output(logits, runtime::exit_output(layer));
  }

 private:
  const runtime::LayerBoundary& final_boundary() const { return layers_.boundaries.back(); }

  void own_norm(int64_t layer, const ExitWeights& own, const Value* pooled, const Value* stream) {
    Node* norm = norm_between(pooled, stream);
    if (norm != nullptr) {
      give_own_norm(rewriter_, layer, own, norm);
    } else if (own.norm || head_ == "norm") {
      throw_error(
          ErrorCode::Unsupported,
          "insert-exit-heads: the head normalizes nothing itself (the layers do), so that exits have no "
          "norm of their own; head=shared and adapter are possible");
    }
  }

  // Its own numbers, of the shape of those that it shared.
  void own_linear(int64_t layer, size_t index, const ExitWeights::Linear& own, Node* linear) {
    for (const auto& [input, given, part] :
         {std::tuple{size_t{1}, own.weight, "weight"}, std::tuple{size_t{2}, own.bias, "bias"}}) {
      if (!given) continue;
      const std::string name = concat("exits.", layer, ".linear.", index, ".", part);
      const Value* shared = linear->input(input);
      if (shared == nullptr || given->shape() != shape_of(*shared)) {
        throw_error(ErrorCode::InvalidArgument, "'", name, "' has shape ", to_string(given->shape()),
                    "; the model's head has ", shared == nullptr ? "none" : to_string(shape_of(*shared)));
      }
      rewriter_.set_input(linear, input, rewriter_.add_constant(*given, name));
    }
  }

  Rewriter& rewriter_;
  const EncoderLayers& layers_;
  const std::string& head_;
  const safetensors::File* file_;
  int64_t width_;
  EncoderHead parts_;
};

}  // namespace

EncoderHead find_encoder_head(const EncoderLayers& layers) {
  EncoderHead head;
  const runtime::LayerBoundary& last = layers.boundaries.back();
  for (Value* value = layers.logits->value; value != last.stream && value != last.normed;) {
    Node* node = value->producer();
    if (node == nullptr) throw_error(ErrorCode::Internal, "the logits do not come from the last layer");
    if (node->is("Linear", kQuernDomain)) {
      head.linears.insert(head.linears.begin(), node);
      head.pooled = node->input(0);
    }
    Value* next = nullptr;
    for (Value* input : node->inputs()) {
      if (input == nullptr || !layers.flowing.contains(input) || input == next) continue;
      if (next != nullptr)
        throw_error(ErrorCode::Unsupported, describe(*node), ": the head branches between stream and logits");
      next = input;
    }
    value = next;
    if (value == nullptr) throw_error(ErrorCode::Internal, "the logits do not come from the last layer");
  }
  if (head.linears.empty())
    throw_error(ErrorCode::Unsupported, "the head has no linear layer (an operator ai.quern.Linear)");
  return head;
}

void add_encoder_exits(Graph& graph, const std::vector<int64_t>& layers, const std::string& head,
                       const safetensors::File* file) {
  const EncoderLayers found = runtime::find_encoder_layers(graph);
  Rewriter rewriter(graph);
  Inserter inserter(rewriter, found, head, file);
  for (const int64_t layer : layers) {
    if (layer >= found.layers()) {
      throw_error(ErrorCode::InvalidArgument, "insert-exit-heads: an exit behind layer ", layer,
                  " of a model of ", found.layers(), " layers");
    }
    inserter.add(layer);
  }
  rewriter.commit();
}

}  // namespace quern::passes
