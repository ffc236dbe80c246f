#include "runtime/layers/blocks.h"

#include <algorithm>
#include <charconv>

#include "ir/error.h"
#include "ir/schema.h"
#include "runtime/decoder/program.h"
#include "runtime/layers/narrow_places.h"

namespace quern::runtime {
namespace {

constexpr std::string_view kExitPrefix = "exit_logits.";

bool is_attention(const Node& node) {
  return node.is("CachedAttention", kQuernDomain);
}

const GraphOutput* find_output(const Graph& graph, const std::string& name) {
  const auto found = std::find_if(graph.outputs().begin(), graph.outputs().end(),
                                  [&](const GraphOutput& output) { return output.name == name; });
  return found != graph.outputs().end() ? &*found : nullptr;
}

std::set<const Value*> depending_on_tokens(const Graph& graph) {
  std::set<const Value*> found;
  if (const Value* ids = graph.find_value("input_ids")) found.insert(ids);
  for (const Node* node : graph.nodes()) {
    const bool depends = std::any_of(node->inputs().begin(), node->inputs().end(),
                                     [&](const Value* input) { return found.contains(input); });
    if (!depends) continue;
    for (const Value* output : node->outputs()) {
      if (output != nullptr) found.insert(output);
    }
  }
  return found;
}

// The way from the tokens to the logits, cut into what lies between its narrowest places.
class Search {
 public:
  Search(const Graph& graph, const Value* logits, const std::set<const Value*>& of_tokens)
      : places_(graph, logits, of_tokens) {}

  // Boundaries before every layer and behind the last one.
  std::vector<LayerBoundary> run() {
    std::vector<LayerBoundary> boundaries;
    LayerBoundary last;
    int64_t layer = 0;
    bool fresh = false;  // `last` lies behind the attention before
    for (Node* node : places_.order()) {
      if (is_attention(*node)) {
        if (!fresh) unsupported(*node, layer);
        boundaries.push_back(last);
        if (node->int_attribute("layer", -1) != layer) unsupported(*node, layer);
        ++layer;
        fresh = false;
      }
      if (const LayerBoundary here = places_.at(*node); here.node != nullptr && is_stream(*node, layer)) {
        last = here;
        fresh = true;
      }
    }
    if (layer == 0 || !fresh) {
      throw_error(ErrorCode::Unsupported,
                  layer == 0 ? "the decoder has no layers with a cache" : "no sum ends the last layer");
    }
    boundaries.push_back(last);
    part_final_norm(boundaries);
    return boundaries;
  }

 private:
  [[noreturn]] static void unsupported(const Node& node, int64_t layer) {
    throw_error(ErrorCode::Unsupported, describe(node), ": layer ", layer,
                " gets more than one value of those before it, so that none can be left out");
  }

  // Behind the first attention a layer ends with a sum; what comes before it is an embedding.
  bool is_stream(const Node& node, int64_t layer) const {
    if (layer == 0) return true;
    if (is_skip_norm(node)) return true;
    return node.op() == "Add" && places_.flows(node.input(0)) && places_.flows(node.input(1));
  }

  NarrowPlaces places_;
};

}  // namespace

LayerBoundaries find_layers(const Graph& graph) {
  LayerBoundaries found;
  const GraphOutput* logits = find_output(graph, "logits");
  if (logits == nullptr) {
    throw_error(ErrorCode::InvalidArgument, "the graph '", graph.name(),
                "' is no canonical decoder: it has no output 'logits'");
  }
  found.of_tokens = depending_on_tokens(graph);
  found.boundaries = Search(graph, logits->value, found.of_tokens).run();
  return found;
}

std::string exit_output(int64_t layers) {
  return std::string(kExitPrefix) + std::to_string(layers);
}

std::vector<int64_t> exits_of(const Graph& graph) {
  std::vector<int64_t> exits;
  for (const GraphOutput& output : graph.outputs()) {
    if (!output.name.starts_with(kExitPrefix)) continue;
    const char* begin = output.name.data() + kExitPrefix.size();
    const char* end = output.name.data() + output.name.size();
    int64_t layers = 0;
    const auto parsed = std::from_chars(begin, end, layers);
    if (parsed.ec == std::errc() && parsed.ptr == end && layers > 0) exits.push_back(layers);
  }
  std::sort(exits.begin(), exits.end());
  return exits;
}

LayerBuilder::LayerBuilder(Graph& graph) : graph_(graph), rewriter_(graph), layers_(find_layers(graph)) {
  attentions_.resize(static_cast<size_t>(layers()));
  for (Node* node : graph.nodes()) {
    if (is_attention(*node)) {
      const int64_t layer = node->int_attribute("layer", -1);
      if (layer < 0 || layer >= layers()) {
        throw_error(ErrorCode::Unsupported, describe(*node), ": layer ", layer, " of ", layers(),
                    " does not lead to the logits");
      }
      attentions_[static_cast<size_t>(layer)] = node;
    }
    const bool selects = node->is("SelectRows", kQuernDomain) ||
                         std::any_of(node->inputs().begin(), node->inputs().end(),
                                     [&](const Value* input) { return selected_.contains(input); });
    if (!selects) continue;
    for (const Value* output : node->outputs()) {
      if (output != nullptr) selected_.insert(output);
    }
  }
}

Value* lone_norm(Rewriter& rewriter, const LayerBoundary& boundary, Value* stream) {
  const Node& skip = *boundary.node;
  const bool rms = skip.op() == "SkipSimplifiedLayerNormalization";
  NodeSpec spec;
  spec.op = rms ? "RMSNormalization" : "LayerNormalization";
  spec.name = skip.name() + ".alone";
  spec.inputs = {stream, skip.input(2)};
  if (!rms && skip.input(3) != nullptr) spec.inputs.push_back(skip.input(3));
  spec.attributes = {{"epsilon", skip.float_attribute("epsilon", 1e-12f)}, {"axis", int64_t{-1}}};
  spec.outputs = {OutputSpec{.name = {}, .type = boundary.normed->type()}};
  return rewriter.add_node(std::move(spec))->output();
}

const LayerBoundary& LayerBuilder::at(int64_t boundary) const {
  return layers_.boundaries.at(static_cast<size_t>(boundary));
}

Value* LayerBuilder::given(const std::string& name) {
  // All boundaries but the last, which may be of selected rows, have one type.
  return rewriter_.add_input(name, at(0).stream->type());
}

// As lone_norm(); once for a stream.
Value* LayerBuilder::normed(int64_t boundary, Value* stream) {
  const LayerBoundary& there = at(boundary);
  if (stream == there.stream) return there.normed;
  const auto known = normed_.find(stream);
  if (known != normed_.end() && known->second.first == boundary) return known->second.second;
  Value* made = lone_norm(rewriter_, there, stream);
  normed_[stream] = {boundary, made};
  return made;
}

Value* LayerBuilder::copy(Value* value, std::map<const Value*, Value*>& copies) {
  if (value == nullptr || !layers_.of_tokens.contains(value)) return value;
  if (const auto found = copies.find(value); found != copies.end()) return found->second;
  const Node* node = value->producer();
  if (node == nullptr) {
    throw_error(ErrorCode::Internal, "'", value->name(), "' is needed beside the stream between the layers");
  }
  NodeSpec spec{.op = node->op(), .domain = node->domain(), .opset = node->opset(), .name = node->name()};
  for (Value* input : node->inputs()) spec.inputs.push_back(copy(input, copies));
  spec.attributes = node->attributes();
  spec.outputs.clear();
  for (const Value* output : node->outputs()) {
    spec.outputs.push_back(output != nullptr ? OutputSpec{.name = {}, .type = output->type()}
                                             : OutputSpec::omitted());
  }
  const Node* made = rewriter_.add_node(std::move(spec));
  for (size_t i = 0; i < node->outputs().size(); ++i) {
    if (node->output(i) == nullptr) continue;
    copies[node->output(i)] = made->output(i);
    if (is_selected(node->output(i))) selected_.insert(made->output(i));
  }
  return copies.at(value);
}

Value* LayerBuilder::instead(int64_t boundary, Value* stream, Value* target) {
  const LayerBoundary& there = at(boundary);
  if (stream == there.stream) return target;
  std::map<const Value*, Value*> copies;
  if (there.stream != nullptr) copies[there.stream] = stream;
  if (there.normed != nullptr)
    copies[there.normed] = finished_.contains(stream) ? stream : normed(boundary, stream);
  Value* made = copy(target, copies);
  // A norm that was computed with the sum serves the next layer.
  for (int64_t b = boundary + 1; b <= layers(); ++b) {
    if (target == nullptr || at(b).stream != target || at(b).normed == nullptr) continue;
    normed_[made] = {b, copies.at(at(b).normed)};
  }
  return made;
}

Value* LayerBuilder::layer(int64_t layer, Value* stream) {
  layers_repeat_ = layers_repeat_ || stream != at(layer).stream;
  const LayerBoundary& behind = at(layer + 1);
  if (behind.stream != nullptr) return instead(layer, stream, behind.stream);
  Value* made = instead(layer, stream, behind.normed);
  finished_.insert(made);
  return made;
}

Node* LayerBuilder::attention(int64_t layer) const {
  return attentions_.at(static_cast<size_t>(layer));
}

void LayerBuilder::append(int64_t layer, Value* stream, const std::string& output) {
  const Node& attention = *this->attention(layer);
  const LayerBoundary& there = at(layer);
  std::map<const Value*, Value*> copies = {{there.stream, stream}};
  if (there.normed != nullptr) copies[there.normed] = normed(layer, stream);
  NodeSpec spec{.op = "AppendCache", .domain = std::string(kQuernDomain)};
  spec.name = attention.name() + ".append";
  spec.inputs = {copy(attention.input(1), copies), copy(attention.input(2), copies)};
  if (Value* key_scales = attention.input(5)) spec.inputs.push_back(key_scales);
  spec.attributes = attention.attributes();
  spec.outputs = {OutputSpec{.name = {}, .type = attention.input(2)->type()}};
  rewriter_.add_output(rewriter_.add_node(std::move(spec))->output(), output);
}

bool LayerBuilder::is_selected(const Value* value) const {
  return selected_.contains(value);
}

Value* LayerBuilder::at_head(Value* stream) {
  const LayerBoundary& last = at(layers());
  if (!is_selected(last.stream != nullptr ? last.stream : last.normed) || is_selected(stream)) return stream;
  NodeSpec spec{.op = "SelectRows", .domain = std::string(kQuernDomain), .inputs = {stream}};
  Value* made = rewriter_.add_node(std::move(spec))->output();
  selected_.insert(made);
  return made;
}

Value* LayerBuilder::same_rows(Value* value, const Value* known) {
  if (is_selected(known)) selected_.insert(value);
  return value;
}

Value* LayerBuilder::logits(Value* stream) {
  return instead(layers(), at_head(stream), find_output(graph_, "logits")->value);
}

Value* LayerBuilder::exit_logits(int64_t layers, Value* stream) {
  const GraphOutput* exit = find_output(graph_, exit_output(layers));
  if (exit == nullptr) {
    throw_error(ErrorCode::InvalidArgument, "the model has no exit head behind layer ", layers,
                ": insert one by the pass insert-exit-heads");
  }
  return instead(layers, stream, exit->value);
}

void LayerBuilder::commit() {
  if (layers_repeat_) rewriter_.set_metadata(std::string(kLayersRepeat), "1");
  rewriter_.commit();
}

}  // namespace quern::runtime
