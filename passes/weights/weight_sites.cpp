#include "passes/weights/weight_sites.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "ir/schema.h"
#include "passes/weights/constant_expressions.h"

namespace quern::passes {
namespace {

bool is_made_by(const Value& value, std::string_view op) {
  return value.producer() != nullptr && value.producer()->is(op, kQuernDomain);
}

class SiteFinder {
 public:
  explicit SiteFinder(std::vector<std::pair<const Node*, std::string>>* why_not) : why_not_(why_not) {}

  void visit(Graph& graph) {
    for (Node* node : graph.nodes()) {
      const OpSchema* schema = SchemaTable::instance().find(*node);
      if (schema == nullptr) continue;
      for (const QuantizableInput& input : schema->quantizable) visit_use({node, input.input});
    }
    for (const Node* node : graph.nodes()) {
      for (Graph* sub : node->subgraphs()) visit(*sub);
    }
  }

  std::vector<WeightSite> sites;

 private:
  void visit_use(const Use& use) {
    Value* value = use.node->input(static_cast<size_t>(use.input));
    if (value == nullptr) return;
    const auto known = index_.find(value);
    if (known != index_.end()) return add_use(sites[known->second], use);
    const auto shape = value->has_shape() ? as_constant(value->shape()) : std::nullopt;
    if (!expressions_of(*value).contains(value)) return reject(use, "its weight is computed from inputs");
    if (!shape || shape->size() != 2) return reject(use, "its weight is no matrix of constant shape");
    index_.emplace(value, sites.size());
    WeightSite site{.value = value, .name = weight_name(*value), .rows = (*shape)[0], .cols = (*shape)[1]};
    for (const Value* source : source_constants(value)) add_name(site, source->name());
    add_name(site, value->name());
    add_name(site, site.name);
    add_use(site, use);
    sites.push_back(std::move(site));
  }

  const ConstantExpressions& expressions_of(const Value& value) {
    auto& expressions = expressions_[value.graph()];
    if (!expressions) expressions = std::make_unique<ConstantExpressions>(*value.graph());
    return *expressions;
  }

  static void add_name(WeightSite& site, const std::string& name) {
    if (!name.empty() && std::find(site.names.begin(), site.names.end(), name) == site.names.end()) {
      site.names.push_back(name);
    }
  }

  static void add_use(WeightSite& site, const Use& use) {
    site.uses.push_back(use);
    site.is_embedding = site.is_embedding || use.node->is("Embedding", kQuernDomain);
    add_name(site, use.node->name());
  }

  void reject(const Use& use, std::string reason) {
    if (why_not_ != nullptr) why_not_->emplace_back(use.node, std::move(reason));
  }

  std::vector<std::pair<const Node*, std::string>>* why_not_;
  std::unordered_map<const Value*, size_t> index_;
  std::unordered_map<const Graph*, std::unique_ptr<ConstantExpressions>> expressions_;
};

}  // namespace

bool WeightSite::is_quantized() const {
  if (value->quantized() != nullptr || is_made_by(*value, "QuantizeWeight")) return true;
  if (value->packed() != nullptr) return value->packed()->spec().is_quantized();
  return is_made_by(*value, "PackWeight") && is_made_by(*value->producer()->input(0), "QuantizeWeight");
}

bool WeightSite::is_packed() const {
  return value->packed() != nullptr || is_made_by(*value, "PackWeight");
}

std::vector<WeightSite> find_weight_sites(Graph& graph,
                                          std::vector<std::pair<const Node*, std::string>>* why_not) {
  SiteFinder finder(why_not);
  finder.visit(graph);
  return std::move(finder.sites);
}

}  // namespace quern::passes
