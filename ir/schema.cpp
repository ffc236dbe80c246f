#include "ir/schema.h"

#include <algorithm>

#include "ir/attribute_types.h"
#include "ir/ops/register.h"

namespace quern {

const SchemaTable& SchemaTable::instance() {
  static const SchemaTable table = [] {
    SchemaTable built;
    register_all_schemas(built);
    return built;
  }();
  return table;
}

void SchemaTable::add(OpSchema schema) {
  std::vector<OpSchema>& entries = table_[{schema.domain, schema.op}];
  const auto at = std::upper_bound(entries.begin(), entries.end(), schema.since,
                                   [](int since, const OpSchema& entry) { return since < entry.since; });
  entries.insert(at, std::move(schema));
}

const OpSchema* SchemaTable::find(std::string_view domain, std::string_view op, int opset) const {
  const auto found = table_.find(std::pair<std::string, std::string>(domain, op));
  if (found == table_.end()) return nullptr;
  const OpSchema* best = nullptr;
  for (const OpSchema& entry : found->second) {
    if (entry.since <= opset) best = &entry;
  }
  return best;
}

std::vector<const OpSchema*> SchemaTable::all() const {
  std::vector<const OpSchema*> schemas;
  for (const auto& [key, entries] : table_) {
    for (const OpSchema& entry : entries) schemas.push_back(&entry);
  }
  return schemas;
}

int newest_opset(std::string_view domain) {
  return domain == kOnnxDomain ? 25 : 1;
}

void check_arity(const Node& node) {
  const OpSchema* schema = SchemaTable::instance().find(node);
  if (schema == nullptr) return;
  const auto check = [&](size_t count, int low, int high, const char* what) {
    if (static_cast<int>(count) >= low && (high == kVariadic || static_cast<int>(count) <= high)) return;
    const std::string expected = high == low         ? concat(low)
                                 : high == kVariadic ? concat(low, " or more")
                                                     : concat(low, " to ", high);
    throw_error(ErrorCode::InvalidModel, describe(node), " has ", count, " ", what, ", expected ", expected);
  };
  check(node.inputs().size(), schema->min_inputs, schema->max_inputs, "inputs");
  check(node.outputs().size(), schema->min_outputs, schema->max_outputs, "outputs");
  for (const std::string& name : schema->required_attributes) {
    if (!node.has_attribute(name)) {
      throw_error(ErrorCode::InvalidModel, describe(node), " lacks the attribute '", name, "'");
    }
  }
  check_attribute_types(node);
}

}  // namespace quern
