// Losses: they occur in exported training graphs and in the evaluation of classifiers.
#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// (scores [N, C, ...], labels [N, ...], weights?) -> loss, log_prob
void infer_loss(InferContext& context) {
  const bool reduced = context.node().string_attribute("reduction", "mean") != "none";
  context.set_output(0, context.dtype(0), reduced ? std::optional(SymShape{}) : context.shape(1));
  context.set_output(1, context.input_type(0));
}

}  // namespace

void register_loss_schemas(SchemaTable& table) {
  table.add({.op = "NegativeLogLikelihoodLoss", .min_inputs = 2, .max_inputs = 3, .infer = infer_loss});
  table.add({.op = "SoftmaxCrossEntropyLoss",
             .min_inputs = 2,
             .max_inputs = 3,
             .max_outputs = 2,
             .infer = infer_loss});
}

}  // namespace quern
