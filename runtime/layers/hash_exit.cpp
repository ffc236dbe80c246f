#include "runtime/layers/hash_exit.h"

#include <algorithm>
#include <numeric>

#include "ir/error.h"
#include "ir/schema.h"

namespace quern::runtime {
namespace {

// Rows of [batch, tokens, C], for each sequence some of its tokens; shorter lists are filled up with the
// first token, whose results nobody reads.
Tensor gather(const Tensor& all, const std::vector<std::vector<int64_t>>& tokens, int64_t longest) {
  const int64_t length = all.dim(1), width = all.dim(2);
  Tensor some = Tensor::zeros(DType::F32, {all.dim(0), longest, width});
  const float* from = all.data<float>().data();
  float* to = some.mutable_data<float>().data();
  for (size_t b = 0; b < tokens.size(); ++b) {
    const float* sequence = from + static_cast<int64_t>(b) * length * width;
    for (int64_t i = 0; i < longest; ++i, to += width) {
      const int64_t token =
          i < static_cast<int64_t>(tokens[b].size()) ? tokens[b][static_cast<size_t>(i)] : 0;
      std::copy_n(sequence + token * width, width, to);
    }
  }
  return some;
}

void scatter(const Tensor& some, const std::vector<std::vector<int64_t>>& tokens, Tensor& all) {
  const int64_t longest = some.dim(1), length = all.dim(1), width = all.dim(2);
  const float* from = some.data<float>().data();
  float* to = all.mutable_data<float>().data();
  for (size_t b = 0; b < tokens.size(); ++b) {
    for (size_t i = 0; i < tokens[b].size(); ++i) {
      std::copy_n(from + (static_cast<int64_t>(b) * longest + static_cast<int64_t>(i)) * width, width,
                  to + (static_cast<int64_t>(b) * length + tokens[b][i]) * width);
    }
  }
}

Tensor floats_of(const RuntimeValue& value) {
  const Tensor tensor = value.dense();
  return tensor.dtype() == DType::F32 ? tensor : tensor.cast(DType::F32);
}

}  // namespace

std::vector<int64_t> layers_by_frequency(std::span<const int64_t> counts, std::span<const int64_t> exits,
                                         int64_t layers) {
  std::vector<int64_t> order;
  for (size_t id = 0; id < counts.size(); ++id) {
    if (counts[id] > 0) order.push_back(static_cast<int64_t>(id));
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return counts[static_cast<size_t>(a)] > counts[static_cast<size_t>(b)];
  });
  std::vector<int64_t> layer_of_token(counts.size(), layers);
  const auto kinds = static_cast<int64_t>(order.size());
  const auto buckets = static_cast<int64_t>(exits.size());
  for (int64_t rank = 0; rank < kinds; ++rank) {
    layer_of_token[static_cast<size_t>(order[static_cast<size_t>(rank)])] =
        exits[static_cast<size_t>(rank * buckets / kinds)];
  }
  return layer_of_token;
}

HashExitEncoder::HashExitEncoder(std::shared_ptr<const Graph> graph, std::vector<int64_t> layer_of_token)
    : original_(std::move(graph)),
      graph_(original_->clone()),
      layers_(find_encoder_layers(*graph_)),
      layer_of_token_(std::move(layer_of_token)) {
  for (const int64_t layer : layer_of_token_) {
    if (layer < 1 || layer > layers_.layers()) {
      throw_error(ErrorCode::InvalidArgument, "a token leaves after layer ", layer, " of a model of ",
                  layers_.layers(), " layers");
    }
  }
  statistics_.layers = layers_.layers();
  statistics_.exit_after.resize(static_cast<size_t>(layers_.layers()));
  std::iota(statistics_.exit_after.begin(), statistics_.exit_after.end(), 1);
  statistics_.tokens.resize(statistics_.exit_after.size());
  build();
}

void HashExitEncoder::check_attention(const Node& attention) const {
  const bool apart = attention.is("Attention") || attention.is("MultiHeadAttention", kMicrosoftDomain);
  if (!apart || attention.input(1) == nullptr || attention.input(2) == nullptr) {
    throw_error(ErrorCode::Unsupported, describe(attention),
                ": tokens leave only where attention is one operator with queries, keys and values apart");
  }
  for (size_t i = 3; i < attention.inputs().size(); ++i) {
    const Value* bias = attention.input(i);
    if (bias == nullptr || !bias->has_shape() || bias->shape().size() < 3) continue;
    const SymShape& shape = bias->shape();
    if (shape[shape.size() - 2].as_constant() != 1) {
      throw_error(ErrorCode::Unsupported, describe(attention), ": '", bias->name(), "' (",
                  to_string(bias->type()),
                  ") differs by query; tokens that leave take their row of it along");
    }
  }
}

void HashExitEncoder::build() {
  Rewriter rewriter(*graph_);
  const std::vector<Value*> inputs = graph_->inputs();
  for (int64_t l = 0; l < layers_.layers(); ++l) {
    const Node& attention = *layers_.attentions[static_cast<size_t>(l)];
    check_attention(attention);
    const LayerBoundary& before = layers_.at(l);
    ValueType type = before.stream->type();
    Value* all = rewriter.add_input(concat("hash_exit.all.", l), type);
    (*type.shape)[1] = Dim::fresh();
    Value* active = rewriter.add_input(concat("hash_exit.active.", l), type);
    FlowCopy keys(rewriter, layers_), rest(rewriter, layers_);
    keys.put_at(before, all);
    rest.put_at(before, active);
    for (const size_t i : {1, 2}) rest.put(keys.of(attention.input(i)), attention.input(i));
    Value* target = l + 1 < layers_.layers() ? layers_.at(l + 1).stream : layers_.final_stream();
    Value* behind = rest.of(target);
    made_.push_back({all, active, behind});
    rewriter.add_output(behind, concat("hash_exit.behind.", l));
  }
  Value* stream = rewriter.add_input("hash_exit.head", layers_.at(0).stream->type());
  FlowCopy head(rewriter, layers_);
  if (layers_.boundaries.back().stream != nullptr) {
    head.put_at(layers_.boundaries.back(), stream);
  } else {
    head.put(stream, layers_.final_stream());
  }
  Value* logits = head.of(layers_.logits->value);
  head_stream_ = stream;
  logits_ = logits;
  rewriter.add_output(logits, "hash_exit.logits");
  rewriter.commit();
  make_parts({inputs.begin(), inputs.end()});
}

void HashExitEncoder::make_parts(std::vector<const Value*> given) {
  parts_.emplace_back(*graph_, given, std::vector<const Value*>{layers_.at(0).stream});
  for (const Layer& layer : made_) {
    std::vector<const Value*> with = given;
    with.insert(with.end(), {layer.all, layer.active});
    parts_.emplace_back(*graph_, with, std::vector<const Value*>{layer.behind});
  }
  given.push_back(head_stream_);
  parts_.emplace_back(*graph_, given, std::vector<const Value*>{logits_});
  for (size_t i = 1; i < parts_.size(); ++i) {
    for (const Node* node : parts_[i].nodes()) {
      if (!layers_.flowing.contains(node->output())) continue;
      throw_error(ErrorCode::Unsupported, describe(*node),
                  ": later layers read more of it than the stream, so that tokens cannot leave in between");
    }
  }
}

// How many layers each token of the batch passes.
std::vector<int64_t> HashExitEncoder::depths_of(const Tensor& ids) const {
  std::vector<int64_t> depths;
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids.int_at(i);
    const bool known = id >= 0 && id < static_cast<int64_t>(layer_of_token_.size());
    const bool first = i % ids.dim(-1) == 0;
    depths.push_back(known && !first ? layer_of_token_[static_cast<size_t>(id)] : layers_.layers());
  }
  return depths;
}

// Of each sequence, the tokens that a layer computes.
std::vector<std::vector<int64_t>> HashExitEncoder::going_on(std::span<const int64_t> depths, int64_t length,
                                                            int64_t layer) const {
  std::vector<std::vector<int64_t>> tokens(depths.size() / static_cast<size_t>(length));
  for (size_t i = 0; i < depths.size(); ++i) {
    if (depths[i] > layer)
      tokens[i / static_cast<size_t>(length)].push_back(static_cast<int64_t>(i) % length);
  }
  return tokens;
}

Tensor HashExitEncoder::run(const NamedValues& inputs, const RunOptions& options) {
  Bindings values;
  for (const Value* input : graph_->inputs()) {
    if (inputs.contains(input->name())) values[input] = inputs.at(input->name());
  }
  const auto ids = values.find(layers_.ids);
  if (ids == values.end() || ids->second.tensor() == nullptr || ids->second.tensor()->rank() != 2)
    throw_error(ErrorCode::BadData, "input '", layers_.ids->name(), "' is missing, or not [batch, tokens]");
  const std::vector<int64_t> depths = depths_of(*ids->second.tensor());
  const int64_t length = ids->second.tensor()->dim(1), batch = ids->second.tensor()->dim(0);
  Tensor stream = floats_of(parts_.front().run(values, options).front());
  for (int64_t l = 0; l < layers_.layers(); ++l) {
    const auto tokens = going_on(depths, length, l);
    size_t longest = 0;
    for (const auto& list : tokens) longest = std::max(longest, list.size());
    const Layer& layer = made_[static_cast<size_t>(l)];
    Bindings given = values;
    given[layer.all] = stream;
    given[layer.active] = gather(stream, tokens, static_cast<int64_t>(longest));
    const Tensor behind = floats_of(parts_[static_cast<size_t>(l) + 1].run(given, options).front());
    scatter(behind, tokens, stream);
    rows_computed_ += batch * static_cast<int64_t>(longest);
    rows_of_all_ += batch * length;
  }
  for (const int64_t depth : depths) ++statistics_.tokens[static_cast<size_t>(depth - 1)];
  Bindings given = values;
  given[head_stream_] = stream;
  return floats_of(parts_.back().run(given, options).front());
}

}  // namespace quern::runtime
