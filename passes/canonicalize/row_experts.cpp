// RowBuilder: mixtures of experts. Between ExpertRows and CombineExperts a row is a token of one expert.
#include "ir/schema.h"
#include "passes/canonicalize/row_builder.h"

namespace quern::passes {

void RowBuilder::route_experts(const Node& node) {
  const Rows logits = joined_last(rows_of(node.input(0)), "the logits of experts");
  std::vector<Value*> inputs = {logits.rows};
  if (node.input(1)) inputs.push_back(as_f32(node.input(1)));
  set(node.output(),
      like(emit("RouteExperts", inputs, node.attributes(), std::string(kQuernDomain), &node), logits));
}

void RowBuilder::expert_rows(const Node& node) {
  const Rows x = joined_last(rows_of(node.input(0)), "the inputs of experts");
  const Rows routing = joined_last(rows_of(node.input(1)), "the weights of experts");
  if (x.cached || x.last_only != routing.last_only)
    throw NotRowWise{describe(node) + " takes other tokens than were routed"};
  Rows result = x;
  result.rows =
      emit("ExpertRows", {x.rows, routing.rows}, node.attributes(), std::string(kQuernDomain), &node);
  const ViewAtom tokens{Rows::kSequence, 1, node.output()->shape()[0]};
  result.view = View::of_axes({{tokens}, x.view.axis(-1)}, {0, 0, 0});
  set(node.output(), std::move(result));
}

void RowBuilder::combine_experts(const Node& node) {
  const Rows routing = joined_last(rows_of(node.input(0)), "the weights of experts");
  std::vector<Value*> inputs = {routing.rows};
  ViewAxis features;
  for (size_t i = 1; i < node.inputs().size(); ++i) {
    const Rows y = joined_last(rows_of(node.input(i)), "the results of experts");
    if (y.view.rank() != 2) throw NotRowWise{describe(node) + " sums up something other than rows"};
    features = y.view.axis(-1);
    inputs.push_back(y.rows);
  }
  Rows result = routing;
  result.rows = emit("CombineExperts", inputs, {}, std::string(kQuernDomain), &node);
  std::vector<ViewAxis> axes = routing.view.axes();
  axes.back() = features;
  result.view = View::of_axes(std::move(axes), routing.view.offsets());
  set(node.output(), std::move(result));
}

}  // namespace quern::passes
