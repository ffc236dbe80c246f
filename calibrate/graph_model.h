// Any graph that takes token ids, run whole: no cache, no recognition needed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "calibrate/scored_model.h"
#include "ir/graph.h"
#include "runtime/interpreter.h"

namespace quern::calibrate {

// Fills the inputs that exporters give transformers, for one sequence without a past: ids, attention mask
// (ones), positions (0, 1, ...), token types (zeros), past keys and values (empty), the switch of a merged
// decoder (off). Roles are told by name and type.
class TokenInputs {
 public:
  // Throws Error{Unsupported} naming an input that has none of these roles.
  explicit TokenInputs(const Graph& graph);

  // Values for all inputs. Where the graph states a fixed length, shorter sequences are padded with id 0
  // under a mask of zeros.
  runtime::NamedValues fill(std::span<const int64_t> ids) const;
  // The same for several sequences of one length; see takes_batches().
  runtime::NamedValues fill(std::span<const std::span<const int64_t>> sequences) const;

  // Whether the ids have a batch dimension that is not fixed.
  bool takes_batches() const;

  const Value& ids() const { return *ids_; }
  // The length that the graph states for its ids; 0: any.
  int64_t fixed_length() const { return fixed_length_; }

 private:
  enum class Role { Ids, Mask, Positions, TokenTypes, Past, UsePast };
  struct Input {
    const Value* value;
    Role role;
  };
  static Role role_of(const Value& input);
  using Sequences = std::span<const std::span<const int64_t>>;
  Tensor make(const Input& input, Sequences sequences, int64_t length) const;

  std::vector<Input> inputs_;
  const Value* ids_ = nullptr;
  int64_t fixed_length_ = 0;
};

// Rows of the tables that `ids` looks up, also through casts and reshapes; 0: none found.
int64_t table_rows(const Value& ids);

// Its logits are the output "logits", or its first output of a floating type: [batch, sequence, vocabulary]
// of a model that predicts tokens, [batch, classes] of a classifier. Throws Error{Unsupported} where the
// graph has none of these, or an input that ids alone cannot fill; and as Interpreter does.
//
// Sequences of one length that it may expect() are computed together, where that gives nearly the logits that
// each gives by itself (it does not where the graph quantizes activations over the batch).
std::unique_ptr<ScoredModel> make_graph_model(std::shared_ptr<const Graph> graph);

}  // namespace quern::calibrate
