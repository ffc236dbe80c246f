#include "formats/onnx/node_order.h"

#include <functional>
#include <queue>
#include <unordered_map>

#include "ir/error.h"

namespace quern::onnx_format {
namespace {

// Every name that `node` reads, those that its sub-graphs capture included.
std::set<std::string> read_names(const onnx::NodeProto& node) {
  std::set<std::string> names(node.input().begin(), node.input().end());
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) names.merge(free_names(attribute.g()));
    for (const auto& graph : attribute.graphs()) names.merge(free_names(graph));
  }
  names.erase("");
  return names;
}

}  // namespace

std::set<std::string> free_names(const onnx::GraphProto& graph) {
  std::set<std::string> names;
  for (const auto& node : graph.node()) names.merge(read_names(node));
  for (const auto& output : graph.output()) names.insert(output.name());
  for (const auto& input : graph.input()) names.erase(input.name());
  for (const auto& tensor : graph.initializer()) names.erase(tensor.name());
  for (const auto& sparse : graph.sparse_initializer()) names.erase(sparse.values().name());
  for (const auto& node : graph.node()) {
    for (const std::string& output : node.output()) names.erase(output);
  }
  return names;
}

std::vector<int> build_order(const NodeProtos& nodes) {
  std::unordered_map<std::string, int> producer;
  for (int i = 0; i < nodes.size(); ++i) {
    for (const std::string& output : nodes[i].output()) {
      if (output.empty()) continue;
      const auto [place, fresh] = producer.emplace(output, i);
      if (!fresh) {
        throw_error(ErrorCode::InvalidModel, describe(nodes[i]), ": output ", quoted(output),
                    " is already the output of another node, ", describe(nodes[place->second]));
      }
    }
  }
  const auto count = static_cast<size_t>(nodes.size());
  std::vector<std::vector<int>> consumers(count);
  std::vector<int> waiting(count, 0);
  for (int i = 0; i < nodes.size(); ++i) {
    for (const std::string& name : read_names(nodes[i])) {
      const auto found = producer.find(name);
      if (found == producer.end()) continue;
      consumers[static_cast<size_t>(found->second)].push_back(i);
      ++waiting[static_cast<size_t>(i)];
    }
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int i = 0; i < nodes.size(); ++i) {
    if (waiting[static_cast<size_t>(i)] == 0) ready.push(i);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int i = ready.top();
    ready.pop();
    order.push_back(i);
    for (const int consumer : consumers[static_cast<size_t>(i)]) {
      if (--waiting[static_cast<size_t>(consumer)] == 0) ready.push(consumer);
    }
  }
  for (int i = 0; i < nodes.size() && order.size() < count; ++i) {
    if (waiting[static_cast<size_t>(i)] == 0) continue;
    throw_error(ErrorCode::InvalidModel, describe(nodes[i]), " depends on its own output (a cycle)");
  }
  return order;
}

}  // namespace quern::onnx_format
