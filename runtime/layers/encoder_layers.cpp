#include "runtime/layers/encoder_layers.h"

#include <algorithm>

#include "ir/error.h"
#include "ir/schema.h"
#include "runtime/layers/narrow_places.h"

namespace quern::runtime {
namespace {

const GraphOutput& logits_of(const Graph& graph) {
  const GraphOutput* found = nullptr;
  for (const GraphOutput& output : graph.outputs()) {
    if (output.name == "logits") {
      found = &output;
      break;
    }
    if (found == nullptr && is_floating(output.value->dtype())) found = &output;
  }
  if (found == nullptr || !found->value->has_shape() || found->value->shape().size() != 2) {
    throw_error(ErrorCode::Unsupported, "graph '", graph.name(), "' gives no logits [batch, classes]",
                found == nullptr ? std::string()
                                 : concat(" ('", found->name, "' is ", to_string(found->value->type()), ")"),
                ": it is no classifier");
  }
  return *found;
}

bool reads(const Node& node, const std::set<const Value*>& values) {
  return std::any_of(node.inputs().begin(), node.inputs().end(),
                     [&](const Value* input) { return values.contains(input); });
}

void add_outputs(const Node& node, std::set<const Value*>& values) {
  for (const Value* output : node.outputs()) {
    if (output != nullptr) values.insert(output);
  }
}

// com.microsoft's operator that looks ids up, adds positions and types, and normalizes.
bool is_embed_norm(const Node& node) {
  return node.is("EmbedLayerNormalization", kMicrosoftDomain);
}

// The rows of a table that the tokens choose: ids as they are or by arithmetic, not their shape, which
// positions are made of.
bool looks_up(const Node& node, const std::set<const Value*>& of_ids) {
  if (is_embed_norm(node)) return of_ids.contains(node.input(0));
  const bool embedding = node.is("Embedding", kQuernDomain);
  if (!embedding && !(node.is("Gather") && node.int_attribute("axis", 0) == 0)) return false;
  const Value* table = node.input(0);
  return of_ids.contains(node.input(1)) && !of_ids.contains(table) &&
         (embedding || is_floating(table->dtype())) && table->has_shape() && table->shape().size() == 2;
}

// Finds flowing, shaped and ids.
class TokenFlow {
 public:
  TokenFlow(const Graph& graph, EncoderLayers& layers) : layers_(layers) {
    for (Value* input : graph.inputs()) {
      if (is_integer(input->dtype())) add_of_ids(input, input);
    }
    for (const Node* node : graph.nodes()) visit(*node);
    if (layers.ids == nullptr) {
      throw_error(ErrorCode::Unsupported, "graph '", graph.name(),
                  "' looks up no tokens that are its input: it is no encoder of text");
    }
  }

 private:
  void visit(const Node& node) {
    const bool of_shape = node.is("Shape") || node.is("Size");
    if (reads(node, layers_.flowing)) {
      add_outputs(node, of_shape ? layers_.shaped : layers_.flowing);
    } else if (looks_up(node, of_ids_)) {
      look_up(node);
    } else if (reads(node, layers_.shaped)) {
      add_outputs(node, layers_.shaped);
    } else if (reads(node, of_ids_) && !of_shape) {
      const auto of = std::find_if(node.inputs().begin(), node.inputs().end(),
                                   [&](const Value* input) { return of_ids_.contains(input); });
      for (const Value* output : node.outputs()) {
        if (output != nullptr) add_of_ids(output, input_of_.at(*of));
      }
    }
  }

  void look_up(const Node& node) {
    const bool embed_norm = is_embed_norm(node);
    add_outputs(node, layers_.flowing);
    if (embed_norm && node.output(1) != nullptr) {
      // How long each sequence is, of the mask.
      layers_.flowing.erase(node.output(1));
      layers_.shaped.insert(node.output(1));
    }
    // Token types are looked up, too, in a smaller table.
    const Value* table = node.input(embed_norm ? 2 : 0);
    const int64_t rows = table->has_shape() ? table->shape()[0].as_constant().value_or(0) : 0;
    if (layers_.ids == nullptr || rows > largest_) layers_.ids = input_of_.at(node.input(embed_norm ? 0 : 1));
    largest_ = std::max(largest_, rows);
  }

  void add_of_ids(const Value* value, Value* input) {
    of_ids_.insert(value);
    input_of_[value] = input;
  }

  EncoderLayers& layers_;
  std::set<const Value*> of_ids_;
  std::map<const Value*, Value*> input_of_;  // the graph input that a value is made of
  int64_t largest_ = 0;
};

bool mixes_tokens(const Node& node) {
  if (node.op() == "Attention" || node.is("MultiHeadAttention", kMicrosoftDomain)) return true;
  if (!node.is("Softmax") || node.output() == nullptr || !node.output()->has_shape()) return false;
  return node.output()->shape().size() == 4;
}

bool is_stream(const LayerBoundary& place) {
  const Value* value = place.stream;
  return value->has_shape() && value->shape().size() == 3;
}

// Behind the last layer come the final norm and the head. The stream ends like those of the other layers do.
LayerBoundary choose_last(const std::vector<LayerBoundary>& places,
                          const std::vector<LayerBoundary>& before) {
  if (places.empty()) return {};
  if (before.size() < 2) return places.back();
  const auto found = std::find_if(places.rbegin(), places.rend(), [&](const LayerBoundary& place) {
    return place.node->op() == before.back().node->op();
  });
  return found != places.rend() ? *found : places.back();
}

void cut(const Graph& graph, EncoderLayers& layers) {
  NarrowPlaces places(graph, layers.logits->value, layers.flowing);
  std::vector<LayerBoundary> since;  // the last attention
  for (Node* node : places.order()) {
    if (mixes_tokens(*node)) {
      if (since.empty()) {
        throw_error(ErrorCode::Unsupported, describe(*node), ": layer ", layers.attentions.size(),
                    " gets more than one value of those before it, so that none can be left out");
      }
      layers.boundaries.push_back(since.back());
      layers.attentions.push_back(node);
      since.clear();
    }
    const LayerBoundary here = places.at(*node);
    if (here.node != nullptr && is_stream(here)) since.push_back(here);
  }
  if (layers.attentions.empty())
    throw_error(ErrorCode::Unsupported, "graph '", graph.name(),
                "' has no attention that leads to its logits");
  const LayerBoundary last = choose_last(since, layers.boundaries);
  if (last.node == nullptr)
    throw_error(ErrorCode::Unsupported, "graph '", graph.name(), "': no single value ends its last layer");
  layers.boundaries.push_back(last);
  part_final_norm(layers.boundaries);
}

}  // namespace

Value* EncoderLayers::final_stream() const {
  const LayerBoundary& last = boundaries.back();
  return last.stream != nullptr ? last.stream : last.normed;
}

EncoderLayers find_encoder_layers(const Graph& graph) {
  EncoderLayers layers;
  layers.logits = &logits_of(graph);
  TokenFlow(graph, layers);
  cut(graph, layers);
  return layers;
}

int64_t stream_width(const EncoderLayers& layers) {
  const Value& stream = *layers.at(0).stream;
  const auto width = stream.shape().back().as_constant();
  if (!width) throw_error(ErrorCode::Unsupported, "the width of '", stream.name(), "' is not known");
  return *width;
}

void FlowCopy::put_at(const LayerBoundary& boundary, Value* stream) {
  if (boundary.stream != nullptr) put(stream, boundary.stream);
  if (boundary.normed == nullptr) return;
  put(lone_norm(rewriter_, boundary, stream), boundary.normed);
}

void FlowCopy::put(Value* by, const Value* instead_of) {
  copies_[instead_of] = by;
  follow(instead_of);
}

// Everything that is made of a value.
void FlowCopy::follow(const Value* value) {
  std::vector<const Value*> pending = {value};
  while (!pending.empty()) {
    const Value* next = pending.back();
    pending.pop_back();
    if (!depending_.insert(next).second) continue;
    for (const Use& use : next->uses()) {
      for (const Value* output : use.node->outputs()) {
        if (output != nullptr) pending.push_back(output);
      }
    }
  }
}

Value* FlowCopy::of(Value* value) {
  if (value == nullptr) return value;
  if (const auto found = copies_.find(value); found != copies_.end()) return found->second;
  if (depending_.contains(value)) return copy(value);
  if (layers_.flowing.contains(value))
    throw_error(ErrorCode::Internal, "'", value->name(), "' is needed beside the stream between the layers");
  return value;
}

Value* FlowCopy::copy(Value* value) {
  const Node& node = *value->producer();
  NodeSpec spec{.op = node.op(), .domain = node.domain(), .opset = node.opset(), .name = node.name()};
  for (Value* input : node.inputs()) spec.inputs.push_back(of(input));
  spec.attributes = node.attributes();
  spec.outputs.clear();
  for (const Value* output : node.outputs()) {
    spec.outputs.push_back(output != nullptr ? OutputSpec{.name = {}, .type = output->type()}
                                             : OutputSpec::omitted());
  }
  const Node* made = rewriter_.add_node(std::move(spec));
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    if (node.output(i) != nullptr) copies_[node.output(i)] = made->output(i);
  }
  return copies_.at(value);
}

Value* FlowCopy::made(const Value* value) const {
  const auto found = copies_.find(value);
  return found != copies_.end() ? found->second : nullptr;
}

}  // namespace quern::runtime
