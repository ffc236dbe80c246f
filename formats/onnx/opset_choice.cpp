#include "formats/onnx/opset_choice.h"

#include <algorithm>
#include <climits>

#include "ir/error.h"
#include "ir/schema.h"

namespace quern::onnx_format {
namespace {

// The versions that suit all nodes seen so far, and the nodes that set the bounds.
struct Range {
  int lowest = 1;
  int highest = INT_MAX;
  const Node* needs_lowest = nullptr;
  const Node* needs_highest = nullptr;
  int written = 0;  // the highest version that a node names itself
};

// The last version under which the schema that serves `node` still does.
int last_version(const Node& node, const OpSchema* schema) {
  const SchemaTable& table = SchemaTable::instance();
  const int newest = newest_opset(node.domain());
  for (int version = node.opset() + 1; version <= newest; ++version) {
    if (table.find(node.domain(), node.op(), version) != schema) return version - 1;
  }
  return INT_MAX;
}

void narrow(const Graph& graph, std::map<std::string, Range>& ranges) {
  for (const Node* node : graph.nodes()) {
    Range& range = ranges[node->domain()];
    const OpSchema* schema = SchemaTable::instance().find(*node);
    // Of an operator that quern does not know, it knows no versions either; most mean the same in later ones.
    const int lowest = schema ? schema->since : node->opset();
    const int highest = schema ? last_version(*node, schema) : INT_MAX;
    if (lowest > range.lowest) {
      range.lowest = lowest;
      range.needs_lowest = node;
    }
    if (highest < range.highest) {
      range.highest = highest;
      range.needs_highest = node;
    }
    range.written = std::max(range.written, node->opset());
    for (const Graph* sub : node->subgraphs()) narrow(*sub, ranges);
  }
}

}  // namespace

std::map<std::string, int> choose_opsets(const Graph& graph) {
  std::map<std::string, Range> ranges;
  narrow(graph, ranges);
  std::map<std::string, int> chosen = graph.opsets();
  for (const auto& [domain, range] : ranges) {
    if (range.lowest > range.highest) {
      throw_error(ErrorCode::Unsupported, describe(*range.needs_lowest), " needs version ", range.lowest,
                  " or later of its operator set, and ", describe(*range.needs_highest), " version ",
                  range.highest, " or earlier; an ONNX file has one version for all");
    }
    const auto imported = chosen.find(domain);
    const int wanted = imported != chosen.end() ? imported->second : range.written;
    chosen[domain] = std::clamp(wanted, range.lowest, range.highest);
  }
  return chosen;
}

}  // namespace quern::onnx_format
