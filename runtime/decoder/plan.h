// A compiled decoder: steps over buffers of rows.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "runtime/cpu/attention.h"
#include "runtime/cpu/row_kernels.h"
#include "runtime/decoder/pass.h"
#include "runtime/decoder/program.h"

namespace quern::runtime {

struct PlanKernels {
  const cpu::RowKernels* rows = nullptr;
  const cpu::AttentionKernels* attention = nullptr;
};

class Step {
 public:
  virtual ~Step() = default;

  // This thread's share. A row-local step computes the rows part_of(count(space), thread, threads), from
  // those same rows of what it reads; another step may read and write whatever it likes. Does not throw.
  virtual void run(const Pass& pass, int thread) const = 0;
  // Of weights, keys and values that a pass reads; for profiles.
  virtual int64_t bytes(const Pass&) const { return 0; }
  // Multiply-adds with weights for each row.
  virtual int64_t row_work() const { return 0; }
  // What to_text() shows beside the name.
  virtual std::string detail() const { return {}; }

  std::string name;
  std::string_view kind;
  Space space = Space::Tokens;
  bool row_local = true;
  bool barrier_before = false;  // set by plan_memory
  std::vector<Operand> reads;
  std::vector<Operand> writes;
};

struct Buffer {
  int64_t width = 0;  // floats of a row, a multiple of 16
  Space space = Space::Tokens;
  int output = -1;      // of the entry, if the buffer is that output's memory; else it lies in the arena
  int64_t offset = -1;  // in the arena, floats times rows
};

struct PlanOutput {
  std::string name;
  Operand at;
  Space space = Space::Selected;
};

// What computes one set of outputs.
struct Entry {
  std::vector<std::string> output_names;
  std::vector<PlanOutput> outputs;
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<Buffer> buffers;
  Operand start;                // where the given rows go, if the entry goes on from a value
  bool has_cache = false;       // it appends to sequences
  bool has_last_layer = false;  // also to the last layer
  int64_t arena_width = 0;      // floats for each row
  int64_t token_work = 0;       // multiply-adds of the products for each token, or each given row
};

// A space of rows of its own: what one expert of a mixture serves.
struct ExpertSpace {
  Space parent = Space::Tokens;
  int64_t mixture = 0;  // which of the plan's
  int64_t expert = 0;
  int64_t experts = 1;    // of the mixture
  int64_t per_token = 1;  // of them that serve a token
};

// How a layer's keys were turned before they were kept.
struct KeyRotation {
  std::vector<float> frequencies;  // of the pairs of features; empty: they were not
  bool interleaved = false;        // pairs (2i, 2i + 1), else (i, i + number of pairs)
};

// An ai.quern.CachedAttention's cache, by its attribute `layer`.
struct PlanLayer {
  CacheLayerShape shape;
  cpu::AttentionShape attention;  // cache_dtype is the session's to set
  KeyRotation rotation;           // where DecoderPlan::fixed_positions is empty
};

struct DecoderPlan {
  DecoderTraits traits;
  PlanKernels kernels;
  std::vector<Entry> entries;
  std::vector<std::string> taps;
  std::vector<PlanLayer> layers;
  // Formats of the inputs of the products that one step group encodes; the session makes room for the
  // largest.
  std::vector<std::vector<cpu::ActivationFormat>> encodings;
  // The spaces of all mixtures of experts, those of a mixture side by side.
  std::vector<ExpertSpace> experts;
  // Rows of tables that are looked up by token id and by position; the least of each.
  int64_t id_limit = 0;
  int64_t position_limit = 0;  // 0: none
  // Sequences longer than this use other rotary frequencies; 0: there are none.
  int64_t original_context = 0;
  // Why keys and values can't be given another position; empty: turning the keys on does it.
  std::string fixed_positions;

  // Shared by the entries. Addresses stay as they are.
  std::deque<PackedTensor> weights;
  std::deque<std::vector<float>> constants;
};

// Decides where threads have to wait for one another, gives every buffer its place in the arena, and adds up
// the work of a token. A step whose expert serves nobody is left out together with its barrier: the first
// step of each expert, and the first behind it, wait in any case, since a step before them wrote across rows.
void plan_memory(const DecoderPlan& plan, Entry& entry);

}  // namespace quern::runtime
