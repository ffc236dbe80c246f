// Which values of a transformer depend on masks, positions and shapes alone, and what they are for chosen
// inputs.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "runtime/interpreter.h"

namespace quern::passes {

// What a graph input is for.
enum class InputRole { Ids, Mask, Positions, Past, Flag, Other };

// By type and name: floating inputs of rank 4 or more that are named for a past, a cache or a state are Past,
// other floating ones Other (data); of the integer and boolean ones, those named for a mask are Mask, for
// positions Positions, for a branch or cache flag Flag; the rest are Ids. What comes from an encoder has
// lengths of its own: its mask, and the keys and values of cross-attention, are Other.
InputRole role_of(const Value& input);

// Whether the graph is the decoder of an encoder-decoder: an input is named for an encoder or
// cross-attention.
bool reads_encoder(const Graph& graph);

// Tells control values from data. A value is control if it is computed from constants and from inputs of role
// Mask, Positions and Flag alone; what it takes only the shape of does not count, and neither does what
// symbolic shape inference knows the elements of.
class ControlValues {
 public:
  explicit ControlValues(const Graph& graph);
  bool is_control(const Value* value) const { return !data_.contains(value); }

 private:
  void visit(const Graph& graph);
  std::set<const Value*> data_;
};

// Sizes and contents of the inputs for one evaluation of control values. Dimensions are told by the symbols
// that the inputs' types use, which set_symbol() gives values.
struct Probe {
  int64_t batch = 1;
  int64_t sequence = 1;
  int64_t past = 0;
  // [batch, past + sequence], row-major; empty: all ones.
  std::vector<int64_t> mask = {};
  // [batch, sequence], row-major; empty: past, past + 1, ... in every row.
  std::vector<int64_t> positions = {};
  bool operator<(const Probe& other) const;
};

// Evaluates control values, and values that depend on given others, under a Probe.
class Prober {
 public:
  // `symbols`: expressions of the dimension symbols of the graph in Probe::batch, sequence and past.
  struct Symbols {
    std::string batch, sequence, past;
  };
  Prober(const Graph& graph, Symbols symbols) : graph_(graph), symbols_(std::move(symbols)) {}

  // Throws Error naming what is missing where `value` needs more than the probe and `given` provide.
  std::vector<Tensor> evaluate(std::span<const Value* const> values, const Probe& probe,
                               const runtime::Bindings& given = {}) const;
  Tensor evaluate(const Value* value, const Probe& probe, const runtime::Bindings& given = {}) const {
    return evaluate(std::span(&value, 1), probe, given).front();
  }
  // The dimension under the probe. Throws Error{Unsupported} for a symbol that the probe does not give.
  int64_t size(const Dim& dim, const Probe& probe) const;

 private:
  void bind(const Value* value, const Probe& probe, runtime::Bindings& bindings,
            std::set<const Value*>& seen) const;
  Tensor input(const Value& value, const Probe& probe) const;

  const Graph& graph_;
  Symbols symbols_;
};

}  // namespace quern::passes
