// Mixtures of experts: each expert's operators become steps over the rows that it serves.
#include <string>

#include "runtime/decoder/compiler.h"
#include "runtime/decoder/expert_steps.h"

namespace quern::runtime {

struct EntryCompiler::Mixture {
  Operand routing;
  Space parent = Space::Tokens;
  int64_t experts = 0, per_token = 0;
  size_t first_space = 0;
  bool dispatched = false;
  Operand sums;
};

EntryCompiler::Mixture& EntryCompiler::mixture_of(const Node& node, const Value* routing) {
  const auto found = mixtures_.find(routing);
  if (found == mixtures_.end()) unsupported(node, "its routing is not a RouteExperts's");
  return *found->second;
}

void EntryCompiler::route_experts(const Node& node) {
  const RowValue logits = row_input(node, 0);
  if (logits.features.size() != 1) unsupported(node, "its logits have more than one dimension of features");
  const int64_t experts = logits.at.width;
  RouteStep::Options options;
  options.per_token = node.int_attribute("experts_per_token", 0);
  if (options.per_token < 1 || options.per_token > experts)
    invalid(node, concat("experts_per_token is ", options.per_token, ", there are ", experts));
  const std::string score = node.string_attribute("score", "softmax");
  if (score != "softmax" && score != "sigmoid") unsupported(node, "its score is " + score);
  options.softmax = score == "softmax";
  options.normalize = node.int_attribute("normalize", 0) != 0;
  options.scale = node.float_attribute("scale", 1);
  options.bias = bias_of(node, 1, experts);
  const Operand routing = define(node.output(), logits.space, {experts});
  add_step(std::make_unique<RouteStep>(options, logits.at, routing), node, logits.space);
  auto mixture = std::make_shared<Mixture>();
  mixture->routing = routing;
  mixture->parent = logits.space;
  mixture->experts = experts;
  mixture->per_token = options.per_token;
  mixture->first_space = plan_.experts.size();
  const auto number = plan_.experts.empty() ? 0 : plan_.experts.back().mixture + 1;
  for (int64_t e = 0; e < experts; ++e) {
    plan_.experts.push_back({.parent = logits.space,
                             .mixture = number,
                             .expert = e,
                             .experts = experts,
                             .per_token = options.per_token});
  }
  mixtures_[node.output()] = std::move(mixture);
}

void EntryCompiler::expert_rows(const Node& node) {
  const RowValue x = row_input(node, 0);
  Mixture& mixture = mixture_of(node, node.input(1));
  const int64_t expert = node.int_attribute("expert", -1);
  if (expert < 0 || expert >= mixture.experts) invalid(node, concat("expert is ", expert));
  if (x.space != mixture.parent) unsupported(node, "its inputs differ in rows");
  if (!mixture.dispatched) {
    add_step(std::make_unique<DispatchStep>(mixture.first_space, mixture.per_token, mixture.routing), node,
             mixture.parent);
    add_step(std::make_unique<DispatchedStep>(), node, mixture.parent);
    mixture.dispatched = true;
  }
  const Space space = Space::expert(mixture.first_space + static_cast<size_t>(expert));
  const Operand y = define(node.output(), space, x.features);
  add_step(std::make_unique<ExpertRowsStep>(x.at, y), node, space);
}

// Behind a node that computes an expert's result: its weighted rows go into the sum at once, so that the
// results need no memory beside one another.
void EntryCompiler::accumulate(const Node& node) {
  for (const Value* made : node.outputs()) {
    if (made == nullptr) continue;
    for (const Use& use : made->uses()) {
      const bool summed = use.input > 0 && use.node->is("CombineExperts", kQuernDomain);
      if (summed && needed_nodes_.contains(use.node))
        accumulate_into(*use.node, static_cast<size_t>(use.input));
    }
  }
}

void EntryCompiler::accumulate_into(const Node& combine, size_t input) {
  Mixture& mixture = mixture_of(combine, combine.input(0));
  const RowValue result = row_input(combine, input);
  const auto expert = static_cast<int64_t>(input) - 1;
  const Space space = Space::expert(mixture.first_space + static_cast<size_t>(expert));
  if (!(result.space == space)) unsupported(combine, concat("input ", input, " is not of expert ", expert));
  if (!mixture.sums.defined()) {
    mixture.sums = define(combine.output(), mixture.parent, result.features);
    add_step(std::make_unique<ZeroStep>(mixture.sums), combine, mixture.parent);
  }
  if (mixture.sums.width != result.at.width) {
    invalid(combine,
            concat("input ", input, " has ", result.at.width, " features, others have ", mixture.sums.width));
  }
  add_step(std::make_unique<AccumulateStep>(expert, result.at, mixture.routing, mixture.sums), combine,
           space);
}

// Everything was done where the results were computed.
void EntryCompiler::combine_experts(const Node& node) {
  const Mixture& mixture = mixture_of(node, node.input(0));
  if (static_cast<int64_t>(node.inputs().size()) != mixture.experts + 1)
    invalid(node, concat(node.inputs().size() - 1, " results for ", mixture.experts, " experts"));
  for (size_t i = 1; i < node.inputs().size(); ++i) row_input(node, i);
}

}  // namespace quern::runtime
