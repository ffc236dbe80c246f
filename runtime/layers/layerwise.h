// A decoder one layer at a time, so that any of them can be left out without compiling anew.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "runtime/decoder/session.h"

namespace quern::runtime {

// Entry 0 is the model as ever. The others compute the embedding, each layer, what is behind the last one,
// and each exit head. Throws as find_layers().
std::shared_ptr<const Program> compile_layerwise(const Graph& graph);

class LayerwiseDecoder {
 public:
  // The session's program is compile_layerwise(graph).
  LayerwiseDecoder(Session& session, const Graph& graph);

  int64_t layers() const { return layers_; }
  const std::vector<int64_t>& exits() const { return exits_; }
  // Appends the steps' tokens by these layers, ascending, the model's final norm and head, or, if `exit` is
  // not 0, the head behind so many layers. The session's logits are theirs afterwards. The keys and values of
  // layers that are left out are undefined.
  void run(std::span<const SequenceStep> steps, std::span<const int64_t> layers, int64_t exit = 0);
  // Bytes of weights that a token reads on the way through these layers, the head included; with `exit` as
  // above.
  int64_t bytes(std::span<const int64_t> layers, int64_t exit = 0) const;

 private:
  void collect(std::span<const SequenceStep> steps);
  int head(std::span<const int64_t> layers, int64_t exit) const;
  int64_t entry_bytes(int entry) const;

  Session& session_;
  int64_t layers_;
  std::vector<int64_t> exits_;
  std::vector<float> rows_;
  std::vector<SequenceStep> all_;
};

}  // namespace quern::runtime
