// find_region: walks upwards, latest node first, until one data value is left.
#include <algorithm>
#include <set>

#include "passes/canonicalize/match.h"
#include "passes/canonicalize/rotary_kind.h"

namespace quern::passes {
namespace {

const std::set<std::string_view> kLinear = {
    "Add",     "Sub",    "Mul",       "Neg",     "Concat",   "Slice",  "Split", "Transpose",      "Reshape",
    "Squeeze", "Expand", "Unsqueeze", "Flatten", "Identity", "Gather", "Cast",  "RotaryEmbedding"};

bool is_linear(const Node& node) {
  if (node.is("RotaryEmbedding", "com.microsoft")) return true;
  if (!node.domain().empty() || !kLinear.contains(node.op())) return false;
  return node.op() != "Cast" || (is_floating(node.output()->dtype()) && is_floating(node.input(0)->dtype()));
}

}  // namespace

LinearRegion find_region(Value* output, const ControlValues& control,
                         const std::unordered_map<const Node*, size_t>& order) {
  LinearRegion region;
  const auto later = [&](const Value* a, const Value* b) {
    const size_t at = a->producer() ? order.at(a->producer()) + 1 : 0;
    const size_t bt = b->producer() ? order.at(b->producer()) + 1 : 0;
    return at != bt ? at > bt : a->output_index() < b->output_index();
  };
  std::set<Value*, decltype(later)> open(later);
  open.insert(output);
  while (!(open.size() == 1 && region.positional)) {
    Value* value = *open.begin();
    const Node* node = value->producer();
    if (node == nullptr || !is_linear(*node)) {
      if (open.size() == 1) break;  // nothing positional on the way
      region.reason = concat("'", value->name(), "' and '", (*std::next(open.begin()))->name(),
                             "' come together between projection and attention");
      return region;
    }
    if (open.size() > 64) {
      region.reason = "too many values come together between projection and attention";
      return region;
    }
    open.erase(open.begin());
    // The other outputs of a Split are above the same node.
    while (!open.empty() && (*open.begin())->producer() == node) open.erase(open.begin());
    if (region.nodes.empty() || region.nodes.back() != node) region.nodes.push_back(node);
    for (Value* input : node->inputs()) {
      if (input == nullptr) continue;
      if (!control.is_control(input)) {
        open.insert(input);
      } else if (!is_constant_expression(input) && !input->elements()) {
        region.positional = true;
      }
    }
    if (open.empty()) {
      region.reason = "it does not depend on the data";
      return region;
    }
  }
  region.input = *open.begin();
  std::reverse(region.nodes.begin(), region.nodes.end());
  return region;
}

}  // namespace quern::passes
