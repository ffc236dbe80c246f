// ai.quern.CachedAttention with the rotary embedding of its queries and keys.
#pragma once

#include <optional>

#include "runtime/decoder/plan.h"
#include "runtime/decoder/row_steps.h"

namespace quern::runtime {

class AttentionStep final : public Step {
 public:
  struct Operands {
    // Without q and out, keys and values are appended and nobody attends to them.
    Operand q, k, v, out;
    std::optional<RotarySpec> rotate_q, rotate_k;  // what is still to be done to q and k
  };
  AttentionStep(const PlanKernels& kernels, int layer, const cpu::AttentionShape& shape,
                const Operands& operands);

  void run(const Pass& pass, int thread) const override;
  int64_t bytes(const Pass& pass) const override;
  std::string detail() const override;

  // Floats that a thread works in, and that `threads` threads need to share contexts of up to `positions`.
  static int64_t scratch_floats(const cpu::AttentionShape& shape);
  static int64_t states_floats(const cpu::AttentionShape& shape, int64_t positions, int threads);
  // Makes room for the tree of a piece.
  static void reserve(TreeScratch& scratch, const cpu::AttentionShape& shape, int64_t base, int64_t tokens);

 private:
  // Some queries of one sequence by some heads that share a KV head.
  struct Item {
    const Piece* piece;
    int64_t first_row;  // of the pass
    int64_t tokens;
    int64_t first_head;
    int64_t heads;
  };
  struct Run;  // one pass's view of the step

  int64_t tile_heads() const { return std::min(shape_.group(), cpu::kAttentionRows); }
  template <class Body>
  void for_each_item(const Pass& pass, Body&& body) const;

  const PlanKernels& kernels_;
  int layer_;
  cpu::AttentionShape shape_;
  Operands at_;
};

}  // namespace quern::runtime
