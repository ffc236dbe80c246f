// A decoder made ready to run: the canonical graph (docs/canonical-graph.md) compiled into a list of steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace quern::runtime {

struct DecoderPlan;

// What a layer keeps in the cache for each token.
struct CacheLayerShape {
  int64_t kv_heads = 0;
  int64_t key_size = 0;    // features of a head's key
  int64_t value_size = 0;  // features of a head's value
  int64_t window = 0;      // positions that attention looks back, the token's own included; 0: all

  bool operator==(const CacheLayerShape&) const = default;
};

struct DecoderTraits {
  int64_t vocabulary = 0;  // width of the logits
  // Longest sequence the model stands: the graph's metadata "context_length", or the rows of a table of
  // learned positions, whichever is less. 0: the model sets no limit.
  int64_t context = 0;
  std::vector<CacheLayerShape> layers;
  // How keys and values are kept unless a session says otherwise: the graph's metadata "cache".
  DType cache_dtype = DType::F32;
  // Bytes of weights that one token reads: all of them but embedding tables, of which it reads a row.
  int64_t streamed_bytes = 0;
  int64_t weight_bytes = 0;  // in memory, packed
};

// Metadata of a graph in which several nodes may keep one layer, for the use of different entries.
inline constexpr std::string_view kLayersRepeat = "layers_repeat";

struct ProgramOptions {
  // What a run computes; one list per entry, and DecodeRunOptions::entry chooses among them. Outputs of the
  // graph, or any other values that have a row for each token, by name (runtime/decoder/hidden_states.h finds
  // hidden states). What the entry's outputs do not need is left out of it, so that an exit after a few
  // layers costs just those layers. Empty: one entry with the output "logits", or with the graph's only
  // output. An entry without outputs computes what the taps need.
  std::vector<std::vector<std::string>> entries = {};
  // For each entry, the value or graph input that it goes on from: its rows are given
  // (DecodeRunOptions::rows, or Session::run_rows()) instead of computed. Empty, or fewer than the entries:
  // it starts from the tokens.
  std::vector<std::string> starts = {};
  // Values that a run can show to an observer (DecodeRunOptions::observer), by name. They are computed as the
  // graph has them; steps that would otherwise be fused across them are not.
  std::vector<std::string> taps = {};
};

// Immutable; shared by any number of sessions. Holds the weights, packed for the kernels (those of an
// artifact are used where they lie; others are packed here, once), not the graph.
class Program {
 public:
  // Throws Error{Unsupported} naming the node for what is not row-wise, Error{InvalidModel} for a graph that
  // breaks the rules of docs/canonical-graph.md, Error{InvalidArgument} for outputs or taps that the graph
  // lacks.
  static std::shared_ptr<const Program> compile(const Graph& graph, const ProgramOptions& options = {});
  ~Program();

  const DecoderTraits& traits() const;
  int entries() const;
  // The outputs of an entry, by name, in the order of Session::logits(step, row, output).
  const std::vector<std::string>& outputs(int entry = 0) const;
  int64_t output_width(int entry, int output) const;
  // Features of the rows that the entry goes on from; 0: it starts from the tokens.
  int64_t start_width(int entry) const;
  // Tap names in the order of the indices that an observer sees.
  const std::vector<std::string>& taps() const;
  // The steps of an entry as text, one a line: what was fused, which kernel, where values lie.
  std::string to_text(int entry = 0) const;

  const DecoderPlan& plan() const { return *plan_; }  // internal

 private:
  explicit Program(std::unique_ptr<DecoderPlan> plan);
  std::unique_ptr<DecoderPlan> plan_;
};

}  // namespace quern::runtime
