// From the canonical graph to steps.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/schema.h"
#include "runtime/decoder/attention_step.h"
#include "runtime/decoder/linear_steps.h"
#include "runtime/decoder/plan.h"
#include "runtime/decoder/row_steps.h"

namespace quern::runtime {

// What all entries of a program share while it is compiled.
struct CompileContext {
  DecoderPlan& plan;
  const Graph& graph;
  std::vector<const Value*> taps;
  cpu::ActivationMode activation_mode = cpu::ActivationMode::A16;
  std::map<const Value*, const PackedTensor*> packed;
  std::map<const Value*, const std::vector<float>*> floats;

  // The weight in the form the kernels read: as it is, or packed now.
  const PackedTensor& weight(const Node& node, const Value& value);
  // A constant's elements as floats; owned by the plan.
  const std::vector<float>& constant(const Node& node, const Value& value);
};

// A value that has a row for each token.
struct RowValue {
  Operand at;
  Space space = Space::Tokens;
  Shape features;  // shape of a row; at.width is its product
};

// Compiles what one entry's outputs need.
class EntryCompiler {
 public:
  // `start`: the value whose rows are given; null: everything is computed from the tokens.
  EntryCompiler(CompileContext& context, Entry& entry, const Value* start = nullptr);
  void compile();

 private:
  using Handler = void (EntryCompiler::*)(const Node&);
  static const std::map<std::pair<std::string, std::string>, Handler>& handlers();

  // compiler.cpp
  void find_needed();
  void emit_start();
  void emit(const Node& node);
  void finish_outputs();
  void emit_tap(size_t tap);
  bool is_kept(const Value* value) const { return kept_.contains(value); }
  bool is_needed(const Value* value) const { return value != nullptr && needed_values_.contains(value); }
  // The only needed node that uses the value, if nobody else looks at it; else null.
  const Node* sole_user(const Value* value) const;
  const RowValue& row_input(const Node& node, size_t i) const;
  const RowValue* find_row(const Value* value) const;
  Operand new_buffer(int64_t width, Space space);
  Operand define(const Value* value, Space space, Shape features);
  void define_view(const Value* value, const RowValue& of, int64_t offset, Shape features);
  void add_step(std::unique_ptr<Step> step, const Node& node, Space space);
  [[noreturn]] static void unsupported(const Node& node, const std::string& why);
  [[noreturn]] static void invalid(const Node& node, const std::string& why);

  // compile_linear.cpp
  struct Planned;  // a Linear with the nodes that are folded into it
  void linear(const Node& node);
  Planned plan_linear(const Node& node);
  void fold_gate(Planned& planned);
  void fold_residual(Planned& planned);
  const float* bias_of(const Node& node, size_t input, int64_t width);

  // compile_attention.cpp
  void rotary(const Node& node);
  void attention(const Node& node);
  void append_cache(const Node& node);
  Operand head_input(const Node& node, size_t input, int64_t width, std::optional<RotarySpec>* rotate);
  // [kv_heads * head_size]; null where the node has none.
  const float* key_scales(const Node& node, size_t input, const cpu::AttentionShape& shape);
  RotarySpec rotary_spec(const Node& node);
  bool is_fused_rotary(const Node& node) const;
  void embedding(const Node& node);
  void select_rows(const Node& node);

  // compile_experts.cpp
  struct Mixture;  // what is known of one routing
  void route_experts(const Node& node);
  void expert_rows(const Node& node);
  void combine_experts(const Node& node);
  void accumulate(const Node& node);
  void accumulate_into(const Node& combine, size_t input);
  Mixture& mixture_of(const Node& node, const Value* routing);

  // compile_norm.cpp
  void rms_norm(const Node& node);
  void layer_norm(const Node& node);
  void skip_rms_norm(const Node& node);
  void skip_layer_norm(const Node& node);
  void norm(const Node& node, bool layer, const Value* weight, const Value* shift);
  void skip_norm(const Node& node, bool layer, const Value* weight, const Value* shift, const Value* bias);
  const float* features_constant(const Node& node, const Value* value, int64_t width);

  // compile_rows.cpp
  void binary(const Node& node);
  void unary(const Node& node);
  void gelu(const Node& node);
  void swish(const Node& node);
  void biased_gelu(const Node& node);
  void softmax(const Node& node);
  void reduce(const Node& node);
  void split(const Node& node);
  void slice(const Node& node);
  void concat_features(const Node& node);
  void reshape(const Node& node);
  void identity(const Node& node);
  void emit_unary(const Node& node, cpu::Unary op);
  bool emit_gated(const Node& node);
  bool try_binary(const Node& node, cpu::BinaryOp op);
  bool row_side(const Node& node, const Value* value, const Shape& features, Side& side, int64_t& group);

  // compile_fallback.cpp
  void fallback(const Node& node);

  CompileContext& context_;
  DecoderPlan& plan_;
  Entry& entry_;
  const Value* start_;
  std::set<const Value*> kept_;  // outputs and taps
  std::set<const Value*> needed_values_;
  std::set<const Node*> needed_nodes_;
  std::vector<const Node*> order_;
  std::set<const Node*> done_;
  std::set<const Node*> deferred_;  // activations that the product behind them may take over
  std::map<const Value*, RowValue> rows_;
  std::map<const Value*, int> output_of_;  // values that are outputs, to their index
  std::vector<RotaryTableStep*> tables_;
  std::map<const Value*, std::shared_ptr<Mixture>> mixtures_;  // by routing
};

// What the attributes of a CachedAttention say. Throws Error{InvalidModel} for nonsense.
cpu::AttentionShape attention_shape(const Node& node);

// The activation that a node computes of its input 0, if it is one of those that products can fold in.
bool unary_of(const Node& node, cpu::Unary& op);

}  // namespace quern::runtime
