// Computes what the weights of a graph become, one at a time.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/quantize.h"
#include "passes/pass.h"

namespace quern::passes {

// What became of one weight.
struct WeightResult {
  std::string name;    // in the user's own model
  std::string format;  // "int4 symmetric per group of 32", "f16", ...
  Shape shape;
  int64_t bytes = 0;  // as stored, scales and padding included
  QuantizeError error;

  double bits_per_weight() const;
};
// {"name", "format", "shape", "bytes", "bits_per_weight", "sqnr_db" (null without error), "max_error"}
nlohmann::json to_json(const WeightResult& result);

// The constant that an expression of constants stands for. PackWeight(QuantizeWeight(w)) and its parts, with
// w a window on a constant (passes/weights/weight_view.h), are computed in blocks of rows: besides the result
// this needs a few MiB, however large w is. Anything else is evaluated by the interpreter, which needs every
// intermediate result. `result` is filled for matrices of floats that are quantized, packed or rounded;
// format stays empty for others. Throws Error{BadData} naming the weight where it can't be quantized (NaN,
// infinity, overflow of scales).
Constant materialize(const Value& value, WeightResult* result = nullptr);

// Whether materialize() makes sense: false for what would blow up, such as an Expand of a scalar to a mask.
// Such an expression stays and is computed at run time.
bool is_worth_storing(const Value& value);

// The expressions of a graph (not of its sub-graphs) that are worth storing, and the names that they are
// stored under: that of the weight, with a number behind it where several are made of one
// ("c_attn.weight.0").
struct StoredExpression {
  Value* value;
  std::string name;
};
std::vector<StoredExpression> stored_expressions(const Graph& graph);

// Puts a constant in the place of an expression, removes what is unused then, and gives it the name, with a
// number behind it if that is still taken. The constant's value.
Value* replace_by_constant(Graph& graph, Value* expression, Constant constant, const std::string& name);

// Before: expressions of constants, above all the decisions of quantize-weights and pack-weights
// After:  their constants, under the names of the weights they are made of
// Holds all of the model in memory: to run a graph in this process. Artifacts are written one weight at a
// time instead (passes/compile.h).
class MaterializeWeights : public Pass {
 public:
  MaterializeWeights();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
