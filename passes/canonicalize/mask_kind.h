// What an attention mask means, found by evaluating it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "passes/canonicalize/control.h"

namespace quern::passes {

struct MaskKind {
  bool causal = false;        // else every position sees every other
  int64_t window = 0;         // causal: the last so many positions, one's own included; 0: all
  std::vector<float> slopes;  // ALiBi: per head, times (key position - query position); empty: none
  std::string reason;         // not empty: not recognised, and why
  bool operator==(const MaskKind&) const = default;
};

// Compares masks, evaluated for several batches, lengths, pasts and paddings, with the hypotheses causal or
// bidirectional, with or without a window and ALiBi slopes (Press et al. 2022). Padded keys may or may not be
// hidden (there is no padding among the rows of a decoder), padded queries may see anything. The same mask is
// looked at once.
class MaskReader {
 public:
  MaskReader(const Prober& prober, bool has_past) : prober_(prober), has_past_(has_past) {}

  // `mask`: additive, or boolean with true for what is seen; broadcasts to [batch, heads, sequence, total];
  // null: none. `causal`: what the operator hides by itself.
  MaskKind read(const Value* mask, bool causal, int64_t heads);

  // The longest total length for which the mask could be evaluated, if it could not be for longer ones; 0: no
  // limit was met.
  int64_t length_limit() const { return length_limit_; }

 private:
  MaskKind compute(const Value* mask, bool causal, int64_t heads);
  struct Seen;
  Seen look(const Value* mask, bool causal, int64_t heads, const Probe& probe) const;
  std::string check(const Seen& seen, const Probe& probe, const MaskKind& kind) const;
  int64_t find_window(const Value* mask, bool causal, int64_t heads);

  const Prober& prober_;
  bool has_past_;
  int64_t length_limit_ = 0;
  std::map<std::tuple<const Value*, bool, int64_t>, MaskKind> known_;
};

}  // namespace quern::passes
