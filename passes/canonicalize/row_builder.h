// Rebuilds a decoder over [batch, sequence] as one over rows, operator by operator.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/rewriter.h"
#include "passes/canonicalize/mask_kind.h"
#include "passes/canonicalize/name_dimensions.h"
#include "passes/canonicalize/rotary_kind.h"
#include "passes/canonicalize/view.h"

namespace quern::passes {

// What is known of a value of the old graph: how it re-indexes rows of the new one. Root axes of the view: 0
// batch, 1 sequence, 2 features.
struct Rows {
  static constexpr int kBatch = 0, kSequence = 1, kFeatures = 2;
  Value* rows = nullptr;  // [tokens, features]; ids: [tokens]
  View view;
  bool cached = false;     // the sequence axis runs over the past too
  bool last_only = false;  // cut to the last position
  std::string failure;     // not empty: not row-wise, and why; nothing else is set then

  bool ok() const { return failure.empty() && rows != nullptr; }
};

// Thrown by handlers, and turned into Rows::failure of the node's outputs.
struct NotRowWise {
  std::string reason;
};

// Walks the old graph forwards. New nodes go through one Rewriter; the old graph stays whole until the caller
// commits.
class RowBuilder {
 public:
  RowBuilder(Graph& graph, const TransformerInputs& inputs, Rewriter& rewriter);

  // Logits as rows [tokens, vocabulary]. Throws NotRowWise.
  Value* build(const Value* logits);

  Value* ids() const { return ids_; }
  Value* positions() const { return positions_; }
  int64_t layers() const { return layers_; }
  // How many positions the graph's constant tables serve; 0: no limit was met.
  int64_t context_length() const { return context_; }
  // Old value -> new value that carries its numbers, for names.
  const std::vector<std::pair<const Value*, Value*>>& counterparts() const { return counterparts_; }

 private:
  using Handler = void (RowBuilder::*)(const Node&);
  static const std::unordered_map<std::string, Handler>& handlers();

  void visit(const Node& node);
  // row_builder.cpp: reading and writing the state
  const Rows& rows_of(const Value* value);  // throws NotRowWise with the value's own reason
  bool is_data(const Value* value) const { return value && !control_.is_control(value); }
  void set(const Value* old, Rows rows);
  Value* emit(std::string op, std::vector<Value*> inputs, Attributes attributes = {}, std::string domain = {},
              const Node* origin = nullptr);
  // The same with a type stated: that of `like`.
  Value* emit_like(const Value* like, std::string op, std::vector<Value*> inputs, Attributes attributes,
                   const Node* origin);
  Value* ints(std::vector<int64_t> values);
  Value* as_f32(Value* constant);  // a constant expression, cast if it is half
  // row_layout.cpp: bringing rows into an order
  std::vector<int64_t> feature_order(const View& view) const;
  Value* take_features(Value* rows, const std::vector<int64_t>& order);
  Rows natural(const Rows& rows);                        // features in the order of the view
  Rows joined_last(const Rows& rows, const char* what);  // natural, and all features in the last axis
  int64_t feature_count(const Value* rows) const;
  Rows like(Value* rows, const Rows& natural_rows) const;
  // row_ops.cpp
  void embedding(const Node& node);
  void linear(const Node& node);
  void unary(const Node& node);
  void binary(const Node& node);
  void norm(const Node& node);
  void skip_norm(const Node& node);
  void move(const Node& node);
  void gather(const Node& node);
  void join(const Node& node);
  void along_features(const Node& node);
  Value* constant_operand(Value* constant, const Rows& data, const SymShape& shape);
  Rows position_embedding(const Value* value);
  Value* emit_norm(const Node& origin, const char* op, const Rows& x, Value* weight, Value* bias,
                   float epsilon);
  // row_experts.cpp
  void route_experts(const Node& node);
  void expert_rows(const Node& node);
  void combine_experts(const Node& node);
  // row_attention.cpp
  struct Heads;
  void attention(const Node& node);
  void group_query_attention(const Node& node);
  void multi_head_attention(const Node& node);
  void rotary_operator(const Node& node);
  Value* rotated(const Value* operand, int64_t heads, int64_t head_size, bool packed);
  Value* as_heads(const Rows& rows, int64_t heads, int64_t head_size, bool packed, const char* what);
  Value* emit_rotary(Value* rows, const RotaryKind& kind, const Node* origin);
  Value* emit_attention(const Node& origin, const Heads& heads, Value* q, Value* k, Value* v,
                        const MaskKind& mask);
  void check_lengths(const Node& node, const Value* last_index, const Value* total);
  bool is_mask_of_ones(const Value* mask);
  void note_context(int64_t limit);

  Graph& graph_;
  const TransformerInputs& inputs_;
  Rewriter& rewriter_;
  ControlValues control_;
  Prober prober_;
  MaskReader masks_;
  RotaryReader rotaries_;
  std::unordered_map<const Node*, size_t> order_;
  std::unordered_map<const Value*, Rows> state_;
  std::map<std::vector<float>, Value*> frequencies_;
  std::map<std::tuple<const Value*, std::vector<int64_t>>, Value*> taken_;
  std::vector<std::pair<const Value*, Value*>> counterparts_;
  Value* ids_ = nullptr;
  Value* positions_ = nullptr;
  int64_t layers_ = 0;
  int64_t context_ = 0;
};

}  // namespace quern::passes
