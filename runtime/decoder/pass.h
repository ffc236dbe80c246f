// What the steps of a plan see of one pass: up to max_rows rows, of any number of sequences, computed
// together.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "ir/dtype.h"
#include "runtime/cpu/linear.h"
#include "runtime/cpu/thread_team.h"

namespace quern::runtime {

struct SequenceState;

// What the rows of a value are: the tokens of the pass, the tokens whose logits are wanted, or those of
// either that one expert of a mixture serves.
struct Space {
  int32_t id = 0;
  static const Space Tokens, Selected;
  // By the index into DecoderPlan::experts.
  static Space expert(size_t index) { return {static_cast<int32_t>(index) + 2}; }
  bool is_expert() const { return id >= 2; }
  size_t expert_index() const { return static_cast<size_t>(id - 2); }
  bool operator==(const Space&) const = default;
};
inline constexpr Space Space::Tokens{0}, Space::Selected{1};

// The rows of the parent space that an expert serves in this pass, ascending.
struct ExpertRows {
  int32_t* rows = nullptr;
  int64_t count = 0;
};

// Where a value lies: features `offset` .. `offset + width` of the rows of a buffer.
struct Operand {
  int buffer = -1;
  int64_t offset = 0;
  int64_t width = 0;
  bool defined() const { return buffer >= 0; }
};

struct RowView {
  float* data = nullptr;
  int64_t stride = 0;
  float* operator[](int64_t row) const { return data + row * stride; }
};

// Consecutive rows of a pass that belong to one sequence.
struct Piece {
  SequenceState* sequence = nullptr;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_slot = 0;  // cache slot of the first row; the others follow
  bool tree = false;       // the rows are the whole of an undecided tree, the slots not their positions
};

// Where one thread gathers the keys and values that a tree's token sees.
struct TreeScratch {
  std::vector<std::byte> blocks;
  std::vector<const std::byte*> table;
  std::vector<int32_t> path;
};

struct Pass {
  int64_t tokens = 0;
  int64_t selected = 0;
  const int64_t* ids = nullptr;            // [tokens]
  const int64_t* positions = nullptr;      // [tokens]
  const int32_t* selected_rows = nullptr;  // [selected], ascending
  const float* given_rows = nullptr;       // of an entry that goes on from a value, [tokens, its width]
  std::span<const Piece> pieces;
  // Of trees: for each row the index within its piece of the row that it follows, or -1.
  const int32_t* parents = nullptr;  // [tokens]

  std::span<const RowView> buffers;
  std::span<std::byte> encoded;  // for the inputs of products
  cpu::ThreadTeam* team = nullptr;
  int threads = 1;
  cpu::LinearScratch* linear_scratch = nullptr;
  float* attention_scratch = nullptr;  // per thread
  int64_t attention_scratch_stride = 0;
  float* attention_states = nullptr;    // partial results of long contexts
  std::span<TreeScratch> tree_scratch;  // per thread; made large enough where a piece is a tree
  DType cache_dtype = DType::F32;

  const std::function<void(int tap, const RowView& view, int64_t width, Space space)>* observe = nullptr;
  // The first failure of a step that can fail; the pass goes on with whatever numbers are there, since all
  // threads have to meet at the barriers, and is thrown away afterwards. Written by thread 0 alone.
  std::exception_ptr* failure = nullptr;

  // By expert space; a DispatchStep fills it in for those of its mixture.
  std::span<ExpertRows> experts;

  int64_t count(Space space) const {
    if (space.is_expert()) return experts[space.expert_index()].count;
    return space == Space::Tokens ? tokens : selected;
  }
  RowView view(const Operand& at) const {
    const RowView& buffer = buffers[static_cast<size_t>(at.buffer)];
    return {buffer.data + at.offset, buffer.stride};
  }
};

}  // namespace quern::runtime
