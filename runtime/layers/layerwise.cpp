#include "runtime/layers/layerwise.h"

#include <algorithm>

#include "ir/error.h"
#include "runtime/decoder/plan.h"
#include "runtime/layers/blocks.h"

namespace quern::runtime {
namespace {

constexpr const char* kRows = "layerwise.rows";

// Entries: the whole, the embedding, the layers but the last, the last layer with the head, the head alone,
// and the exit heads.
constexpr int kEmbedding = 1;
constexpr int kFirstLayer = 2;

}  // namespace

std::shared_ptr<const Program> compile_layerwise(const Graph& graph) {
  const std::unique_ptr<Graph> copy = graph.clone();
  LayerBuilder builder(*copy);
  Value* rows = builder.given(kRows);
  const int64_t last = builder.layers() - 1;
  ProgramOptions options{.entries = {{"logits"}, {builder.stream(0)->name()}}, .starts = {"", ""}};
  const auto add = [&](Value* value, const std::string& name) {
    builder.output(value, name);
    options.entries.push_back({name});
    options.starts.push_back(kRows);
  };
  for (int64_t layer = 0; layer < last; ++layer) {
    add(builder.layer(layer, rows), concat("layerwise.layer.", layer));
  }
  add(builder.logits(builder.layer(last, rows)), "layerwise.last");
  add(builder.logits(rows), "layerwise.head");
  for (const int64_t exit : exits_of(graph)) {
    if (exit <= last) add(builder.exit_logits(exit, rows), concat("layerwise.exit.", exit));
  }
  builder.commit();
  return Program::compile(*copy, options);
}

LayerwiseDecoder::LayerwiseDecoder(Session& session, const Graph& graph)
    : session_(session), layers_(find_layers(graph).layers()), exits_(exits_of(graph)) {
  std::erase_if(exits_, [&](int64_t exit) { return exit >= layers_; });
}

// The stream of all rows that the last run computed.
void LayerwiseDecoder::collect(std::span<const SequenceStep> steps) {
  rows_.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    for (size_t row = 0; row < steps[i].tokens.size(); ++row) {
      const std::span<const float> stream = session_.logits(i, static_cast<int64_t>(row));
      rows_.insert(rows_.end(), stream.begin(), stream.end());
    }
  }
}

int LayerwiseDecoder::head(std::span<const int64_t> layers, int64_t exit) const {
  const int head = kFirstLayer + static_cast<int>(layers_);
  if (exit == 0) return !layers.empty() && layers.back() + 1 == layers_ ? head - 1 : head;
  const auto found = std::find(exits_.begin(), exits_.end(), exit);
  if (found == exits_.end()) throw_error(ErrorCode::InvalidArgument, "no exit head behind layer ", exit);
  return head + 1 + static_cast<int>(found - exits_.begin());
}

void LayerwiseDecoder::run(std::span<const SequenceStep> steps, std::span<const int64_t> layers,
                           int64_t exit) {
  all_.assign(steps.begin(), steps.end());
  for (SequenceStep& step : all_) {
    step.logits = LogitsFor::All;
    step.logit_tokens = {};
  }
  session_.run(all_, {.entry = kEmbedding});
  collect(all_);
  for (const int64_t layer : layers) {
    if (layer + 1 == layers_) continue;  // with the head
    session_.run(all_, {.entry = kFirstLayer + static_cast<int>(layer), .rows = rows_, .continues = true});
    collect(all_);
  }
  session_.run(steps, {.entry = head(layers, exit), .rows = rows_, .continues = true});
}

int64_t LayerwiseDecoder::entry_bytes(int entry) const {
  Pass one;
  one.tokens = one.selected = 1;
  int64_t bytes = 0;
  for (const auto& step : session_.program().plan().entries[static_cast<size_t>(entry)].steps) {
    if (step->kind == "linear") bytes += step->bytes(one);
  }
  return bytes;
}

int64_t LayerwiseDecoder::bytes(std::span<const int64_t> layers, int64_t exit) const {
  int64_t bytes = entry_bytes(head(layers, exit));
  for (const int64_t layer : layers) {
    if (layer + 1 < layers_) bytes += entry_bytes(kFirstLayer + static_cast<int>(layer));
  }
  return bytes;
}

}  // namespace quern::runtime
