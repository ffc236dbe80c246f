// RNN, GRU, LSTM.
#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// (X [T, B, I], W [D, gates*H, I], R [D, gates*H, H], ...) -> Y [T, D, B, H], Y_h [D, B, H], LSTM: Y_c; with
// layout 1 the batch comes first.
void infer_recurrent(InferContext& context) {
  const Node& node = context.node();
  const bool batch_first = node.int_attribute("layout", 0) != 0;
  Dim steps = Dim::fresh();
  Dim batch = Dim::fresh();
  if (context.shape(0) && context.shape(0)->size() == 3) {
    steps = (*context.shape(0))[batch_first ? 1 : 0];
    batch = (*context.shape(0))[batch_first ? 0 : 1];
  }
  const Dim directions(node.string_attribute("direction", "forward") == "bidirectional" ? 2 : 1);
  Dim hidden = Dim::fresh();
  if (node.has_attribute("hidden_size")) {
    hidden = Dim(node.int_attribute("hidden_size", 0));
  } else if (context.shape(2) && context.shape(2)->size() == 3) {
    hidden = context.shape(2)->back();
  }
  const DType dtype = context.dtype(0);
  context.set_output(
      0, dtype,
      batch_first ? SymShape{batch, steps, directions, hidden} : SymShape{steps, directions, batch, hidden});
  for (size_t i = 1; i < 3; ++i) {
    context.set_output(
        i, dtype, batch_first ? SymShape{batch, directions, hidden} : SymShape{directions, batch, hidden});
  }
}

}  // namespace

void register_recurrent_schemas(SchemaTable& table) {
  for (const char* op : {"RNN", "GRU"}) {
    table.add({.op = op,
               .since = 7,
               .min_inputs = 3,
               .max_inputs = 6,
               .min_outputs = 0,
               .max_outputs = 2,
               .infer = infer_recurrent});
  }
  table.add({.op = "LSTM",
             .since = 7,
             .min_inputs = 3,
             .max_inputs = 8,
             .min_outputs = 0,
             .max_outputs = 3,
             .infer = infer_recurrent});
}

}  // namespace quern
