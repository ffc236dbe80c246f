#include "runtime/speculate/medusa_heads.h"

#include <algorithm>

#include "ir/error.h"
#include "ir/schema.h"
#include "runtime/decoder/hidden_states.h"

namespace quern::runtime {
namespace {

const Value* find_output(const Graph& graph, const std::string& name) {
  for (const GraphOutput& output : graph.outputs()) {
    if (output.name == name) return output.value;
  }
  return nullptr;
}

// What the head's projection reads, if that is the model's own; else null.
const Value* shared_projection_input(const Value* logits, const Node& own) {
  const Node* node = logits->producer();
  const bool shared = node != nullptr && node->is("Linear", kQuernDomain) && node->input(1) == own.input(1) &&
                      node->input(2) == own.input(2);
  return shared ? node->input(0) : nullptr;
}

}  // namespace

std::string medusa_output(size_t head) {
  return concat("medusa_logits_", head);
}

int64_t count_medusa_heads(const Graph& graph) {
  int64_t count = 0;
  while (find_output(graph, medusa_output(static_cast<size_t>(count))) != nullptr) ++count;
  return count;
}

ProgramOptions medusa_program(const Graph& graph) {
  const auto count = static_cast<size_t>(count_medusa_heads(graph));
  if (count == 0) {
    throw_error(ErrorCode::InvalidArgument,
                "the model has no Medusa heads; `quern convert --medusa-heads FILE` adds them");
  }
  const HiddenStates states = find_hidden_states(graph);
  const std::string hidden = states.after_final_norm->name();
  ProgramOptions options{.entries = {{"logits", hidden}, {}}, .starts = {"", hidden}};
  bool any_shared = false;
  for (size_t k = 0; k < count; ++k) {
    const std::string name = medusa_output(k);
    const Value* shared = shared_projection_input(find_output(graph, name), *states.head);
    options.entries[kMedusaHeadsEntry].push_back(shared != nullptr ? shared->name() : name);
    any_shared = any_shared || shared != nullptr;
  }
  if (any_shared) {
    options.entries.push_back({"logits"});
    options.starts.push_back(hidden);
  }
  return options;
}

}  // namespace quern::runtime
