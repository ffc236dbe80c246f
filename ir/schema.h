// What quern knows of each operator: the one table that importer, verifier, shape inference and passes read.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace quern {

inline constexpr std::string_view kOnnxDomain = "";
inline constexpr std::string_view kMicrosoftDomain = "com.microsoft";
inline constexpr std::string_view kQuernDomain = "ai.quern";

class InferContext;
using InferFunction = void (*)(InferContext&);

// An input that may hold a quantized weight.
struct QuantizableInput {
  int input;
  int channel_axis;    // one scale per index of this axis for granularity "channel": the output axis
  int reduction_axis;  // summed over; cut into groups for granularity "group"
};

inline constexpr int kVariadic = -1;

struct OpSchema {
  std::string domain;
  std::string op;
  int since = 1;  // serves opsets from here up to the next entry of the same operator
  int min_inputs = 0;
  int max_inputs = 0;  // kVariadic: any number
  int min_outputs = 1;
  int max_outputs = 1;
  std::vector<std::string> required_attributes = {};
  InferFunction infer = nullptr;  // null: outputs stay unknown
  std::vector<QuantizableInput> quantizable = {};
};

class SchemaTable {
 public:
  // All operators, registered on first use by the functions of ir/ops/. Immutable afterwards; thread-safe.
  static const SchemaTable& instance();

  // The entry with the greatest `since` not above `opset`, or null.
  const OpSchema* find(std::string_view domain, std::string_view op, int opset) const;
  const OpSchema* find(const Node& node) const { return find(node.domain(), node.op(), node.opset()); }
  std::vector<const OpSchema*> all() const;
  void add(OpSchema schema);

 private:
  // (domain, op) -> entries by ascending `since`.
  std::map<std::pair<std::string, std::string>, std::vector<OpSchema>, std::less<>> table_;
};

// The version that nodes made by quern itself are written in: 25 for ai.onnx, 1 for the other domains.
int newest_opset(std::string_view domain);

// Throws Error{InvalidModel} naming the node if it has too few or too many inputs or outputs, or lacks a
// required attribute. Nodes of unknown operators pass.
void check_arity(const Node& node);

}  // namespace quern
