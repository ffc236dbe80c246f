// What a rotary embedding does to queries and keys, found by applying it to known vectors.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "passes/canonicalize/name_dimensions.h"
#include "passes/canonicalize/view.h"

namespace quern::passes {

// The attributes of ai.quern.Rotary.
struct RotaryKind {
  bool identity = false;  // nothing is rotated
  int64_t head_size = 0;
  bool interleaved = false;
  double scale = 1;
  std::vector<float> inv_freq;  // one per rotated pair of features
  // Where sequences longer than original_context are served otherwise (LongRoPE); empty: they are not.
  std::vector<float> long_inv_freq;
  int64_t original_context = 0;
  double long_scale = 1;
  int64_t position_limit = 0;  // how many positions constant tables have; 0: any
  std::string reason;          // not empty: no rotary embedding, and why
};

// The part of the graph between a value and what it is computed from by linear operators and control values.
struct LinearRegion {
  Value* input = nullptr;          // the one data value that everything inside comes from
  std::vector<const Node*> nodes;  // in topological order
  bool positional = false;         // control values that are not constant come in
  std::string reason;              // not empty: there is no such region
};

// The smallest region above `output` with a single input and, if there is one, a positional operand.
LinearRegion find_region(Value* output, const ControlValues& control,
                         const std::unordered_map<const Node*, size_t>& order);

// Shapes that the reader needs of one use.
struct RotaryShape {
  int64_t heads = 1;
  int64_t head_size = 1;
  View input;  // of the region's input: root axes 0 batch, 1 sequence, 2 features (heads * head_size)
  bool packed =
      false;  // the output is [batch, sequence, heads * head_size], else [batch, heads, sequence, head_size]
};

class RotaryReader {
 public:
  RotaryReader(const Prober& prober, const TransformerInputs& inputs);

  // Regions that are the same but for their input are looked at once.
  RotaryKind read(const LinearRegion& region, const Value* output, const RotaryShape& shape);

  // Of cosines and sines [positions, pairs] that an operator takes as inputs: constants, or chosen by the
  // length.
  RotaryKind read_caches(const Value* cos, const Value* sin, bool interleaved, int64_t head_size);

 private:
  class Sampler;
  RotaryKind compute(const LinearRegion& region, const Value* output, const RotaryShape& shape);
  RotaryKind compute_caches(const Value* cos, const Value* sin, bool interleaved, int64_t head_size);
  void look_for_long(const Sampler& sampler, const LinearRegion& region, int64_t rotated, double precision,
                     RotaryKind& kind);

  const Prober& prober_;
  bool positions_given_;
  bool has_past_;
  std::map<std::string, RotaryKind> known_;
  std::map<std::pair<const Value*, const Value*>, RotaryKind> known_caches_;
};

}  // namespace quern::passes
