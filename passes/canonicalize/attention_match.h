// The parts of an attention, read off the graph around its Softmax.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "passes/canonicalize/view.h"

namespace quern::passes {

// One thing that decides what is seen: added to the scores, or chosen by a condition.
struct MaskTerm {
  Value* value = nullptr;  // broadcasts to the scores
  bool boolean = false;    // a condition; else added
  bool keep_where = true;  // boolean: the scores stay where it is true (else where it is false)
  double fill = 0;         // boolean: the score elsewhere
  double factor = 1;       // added: what a later scaling multiplies it with
};

// q, k or v as [batch, heads, sequence, size], seen from its values on the way from a root to the product.
struct AttentionOperand {
  struct Stage {
    Value* value;
    View view;         // of the root
    double scale = 1;  // from here to the operand of the product
  };
  std::vector<Stage> stages;              // the root first
  ViewAxis batch, heads, sequence, size;  // in terms of the root; heads without repetition
  int64_t head_count = 1;                 // without repetition
};

struct AttentionMatch {
  AttentionOperand q, k, v;
  double scale = 1;        // apart from those of q's and k's stages
  double softcap = 0;      // 0: none
  Value* sinks = nullptr;  // [1, heads, 1, 1], constant: a logit in the denominator alone
  std::vector<MaskTerm> terms;
  bool nan_guard = false;  // rows that see nothing give zeros
  Node* softmax = nullptr;
  Node* product = nullptr;  // p * v; its output is the attention's
  int scores_rank = 4;      // of the operands of the products
};

// Why there is no match, where the result is empty.
std::optional<AttentionMatch> match_attention(Node& softmax, std::string& reason);

}  // namespace quern::passes
