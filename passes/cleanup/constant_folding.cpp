#include "passes/cleanup/constant_folding.h"

#include <algorithm>
#include <unordered_map>

#include "ir/rewriter.h"
#include "passes/cleanup/node_facts.h"
#include "passes/model_failure.h"
#include "runtime/interpreter.h"

namespace quern::passes {
namespace {

constexpr int64_t kInputsPerOutput = 64;

// Bytes of constants that are on the heap, not mapped from the model's files.
int64_t heap_bytes(const Graph& graph) {
  int64_t total = 0;
  for (const Value* value : graph.constants()) {
    const Tensor* tensor = value->tensor();
    if (tensor != nullptr && !tensor->is_view()) total += tensor->byte_size();
  }
  return total;
}

class Folder {
 public:
  Folder(int64_t max_bytes, int64_t room, PassContext& context)
      : max_bytes_(max_bytes), room_(room), context_(context) {}

  // Commits come last, innermost graph first: until then no value is freed, so that known_ holds no stale
  // keys.
  void run(Graph& graph) {
    fold(graph);
    for (const auto& [each, folded] : found_) commit(*each, folded);
  }

  PassReport report;

 private:
  void fold(Graph& graph) {
    std::vector<Value*> folded;
    for (Node* node : graph.nodes()) {
      for (Graph* sub : node->subgraphs()) fold(*sub);
      fold_elements(*node, folded);
      fold_node(*node, folded);
    }
    found_.emplace_back(&graph, std::move(folded));
  }

  // The tensor of a value that is constant, or has just been found to be.
  const Tensor* known(const Value* value) const {
    const auto found = known_.find(value);
    return found != known_.end() ? &found->second : value->tensor();
  }

  void fold_elements(const Node& node, std::vector<Value*>& folded) {
    for (Value* output : node.outputs()) {
      if (output == nullptr || !output->elements() || !output->has_shape() || !is_integer(output->dtype()))
        continue;
      const auto elements = as_constant(*output->elements());
      const auto shape = as_constant(output->shape());
      if (!elements || !shape || shape->size() > 1) continue;
      Tensor tensor = Tensor::zeros(output->dtype(), *shape);
      if (tensor.size() != static_cast<int64_t>(elements->size())) continue;
      for (int64_t i = 0; i < tensor.size(); ++i) tensor.set_int(i, (*elements)[static_cast<size_t>(i)]);
      keep(output, std::move(tensor), folded);
    }
  }

  // Why the node is not folded; empty: it may be.
  std::string obstacle(const Node& node) const {
    int64_t input_bytes = 0;
    for (const Value* input : node.inputs()) {
      if (input == nullptr) continue;
      const Tensor* tensor = known(input);
      if (tensor == nullptr) return "input '" + input->name() + "' is not constant";
      input_bytes += tensor->byte_size();
    }
    if (!node.subgraphs().empty()) return "it has sub-graphs";
    if (!is_pure(node)) return "it may give another result each time";
    if (input_bytes > kInputsPerOutput * max_bytes_) return concat("its inputs have ", input_bytes, " bytes");
    for (const Value* output : node.outputs()) {
      if (output == nullptr || !output->has_shape() || output->dtype() == DType::Undefined) continue;
      const auto shape = as_constant(output->shape());
      if (shape && quern::byte_size(output->dtype(), element_count(*shape)) > max_bytes_) {
        return concat("the result is ", to_string(output->type()), ", more than ", max_bytes_, " bytes");
      }
    }
    return {};
  }

  void fold_node(Node& node, std::vector<Value*>& folded) {
    std::vector<const Value*> wanted;
    for (const Value* output : node.outputs()) {
      if (output != nullptr) wanted.push_back(output);
    }
    if (std::all_of(wanted.begin(), wanted.end(), [&](const Value* value) { return known_.contains(value); }))
      return;
    const std::string reason = obstacle(node);
    if (!reason.empty()) return explain(node, reason);
    runtime::Bindings bindings;
    for (const Value* input : node.inputs()) {
      if (input != nullptr) bindings.emplace(input, *known(input));
    }
    std::vector<runtime::RuntimeValue> results;
    try {
      runtime::RunOptions options;
      options.limits.max_tensor_bytes = max_bytes_;
      results = runtime::evaluate(wanted, bindings, options);
    } catch (const Error& error) {
      rethrow_unless_of_model(error);
      // What can't be computed here fails, or not, when the model runs.
      return explain(node, error.what());
    }
    size_t next = 0;
    for (Value* output : node.outputs()) {
      if (output == nullptr) continue;
      const Tensor* tensor = results[next++].tensor();
      if (tensor == nullptr || tensor->byte_size() > max_bytes_)
        return explain(node, "the result is no small tensor");
      keep(output, *tensor, folded);
    }
  }

  void explain(const Node& node, const std::string& reason) {
    context_.explain_failure(report, node, reason);
  }

  void keep(Value* value, Tensor tensor, std::vector<Value*>& folded) {
    if (tensor.byte_size() > room_ || known_.contains(value)) return;
    room_ -= tensor.byte_size();
    known_.emplace(value, std::move(tensor));
    folded.push_back(value);
  }

  // Whether some user of the value stays.
  bool is_needed(const Graph& graph, const Value& value) const {
    if (graph.is_output(&value)) return true;
    return std::any_of(value.uses().begin(), value.uses().end(), [&](const Use& use) {
      const auto& outputs = use.node->outputs();
      return std::any_of(outputs.begin(), outputs.end(),
                         [&](const Value* output) { return output != nullptr && !known_.contains(output); });
    });
  }

  static int64_t elements_of(const Value& value) {
    const auto shape = value.has_shape() ? as_constant(value.shape()) : std::nullopt;
    return shape ? element_count(*shape) : 0;
  }

  // The weight that a folded value was made of, if it was made of one alone that nothing else needs. Factors
  // of its rows, such as those of a batch normalization, do not make it another.
  Value* only_source(const Value& value) const {
    if (!is_floating(value.dtype()) || value.producer() == nullptr) return nullptr;
    Value* source = nullptr;
    for (Value* input : value.producer()->inputs()) {
      if (input == nullptr || !is_floating(input->dtype())) continue;
      if (source != nullptr) {
        if (!value.producer()->is("Mul") || elements_of(*source) == elements_of(*input)) return nullptr;
        if (elements_of(*source) > elements_of(*input)) continue;
      }
      source = input;
    }
    if (source == nullptr || source->graph() != value.graph() || source->uses().size() != 1 ||
        source->graph()->is_output(source)) {
      return nullptr;
    }
    return source->is_constant() ? source : only_source(*source);
  }

  void commit(Graph& graph, const std::vector<Value*>& folded) {
    Rewriter rewriter(graph);
    for (Value* value : folded) {
      if (!is_needed(graph, *value)) continue;
      Value* constant = rewriter.add_constant(known_.at(value));
      rewriter.replace(value, constant);
      if (Value* source = only_source(*value)) {
        const std::string name = source->name();
        rewriter.rename(source, name + ".unfolded");
        rewriter.rename(constant, name);
      }
      ++report.changes;
    }
    rewriter.commit();
  }

  int64_t max_bytes_;
  int64_t room_;
  PassContext& context_;
  std::unordered_map<const Value*, Tensor> known_;
  std::vector<std::pair<Graph*, std::vector<Value*>>> found_;
};

}  // namespace

ConstantFolding::ConstantFolding() : Pass("constant-folding", "compute what depends on constants alone") {
  option("max-bytes", &max_bytes_,
         "Larger results stay expressions, which are evaluated when the artifact is written.");
  option("max-total-bytes", &max_total_bytes_,
         "Folding stops when the constants it made have this many bytes.");
}

PassReport ConstantFolding::run(Graph& graph, PassContext& context) {
  if (max_bytes_ < 0 || max_total_bytes_ < 0) {
    throw_error(ErrorCode::InvalidArgument, "max-bytes and max-total-bytes must be 0 or more");
  }
  int64_t room = max_total_bytes_;
  for (const Graph* each : all_graphs(graph)) room -= heap_bytes(*each);
  // Small models are on the heap altogether: shapes and scalars must fold nevertheless.
  Folder folder(max_bytes_, std::max(room, 4 * max_bytes_), context);
  folder.run(graph);
  return std::move(folder.report);
}

}  // namespace quern::passes
