#include "passes/heads/insert_medusa_heads.h"

#include "ir/rewriter.h"
#include "ir/schema.h"
#include "passes/heads/medusa_weights.h"
#include "runtime/decoder/hidden_states.h"
#include "runtime/speculate/medusa_heads.h"

namespace quern::passes {
namespace {

struct Sizes {
  int64_t width = 0;
  int64_t vocabulary = 0;
};

// Of the weight as the user's model has it, or what it is made of.
Sizes sizes_of(const runtime::HiddenStates& states) {
  const Value* weight = states.head->input(1);
  const auto shape = weight->has_shape() ? as_constant(weight->shape()) : std::nullopt;
  if (!shape || shape->size() != 2) {
    throw_error(ErrorCode::InvalidArgument, describe(*states.head),
                ": the size of its weight is not known, so that no heads can be added");
  }
  return {(*shape)[1], (*shape)[0]};
}

std::vector<MedusaHead> fresh_heads(int64_t count, int64_t width) {
  MedusaHead head;
  head.blocks.push_back(
      {.weight = Tensor::zeros(DType::F32, {width, width}), .bias = Tensor::zeros(DType::F32, {width})});
  return std::vector<MedusaHead>(static_cast<size_t>(count), head);
}

void check(const std::vector<MedusaHead>& heads, const Sizes& sizes, const std::string& origin) {
  for (size_t k = 0; k < heads.size(); ++k) {
    for (const MedusaHead::Block& block : heads[k].blocks) {
      if (block.weight.dim(0) == sizes.width) continue;
      throw_error(ErrorCode::InvalidArgument, "head ", k, " of '", origin, "' is of width ",
                  block.weight.dim(0), ", the model's hidden states are of width ", sizes.width);
    }
    const auto& projection = heads[k].projection;
    if (projection && projection->shape() != Shape{sizes.vocabulary, sizes.width}) {
      throw_error(ErrorCode::InvalidArgument, "the projection of head ", k, " of '", origin, "' has shape ",
                  to_string(projection->shape()), "; the model's own is ",
                  to_string(Shape{sizes.vocabulary, sizes.width}));
    }
  }
}

class HeadBuilder {
 public:
  HeadBuilder(Rewriter& rewriter, const runtime::HiddenStates& states)
      : rewriter_(rewriter), states_(states) {}

  void add(const MedusaHead& head, size_t number) {
    const std::string name = concat("medusa.", number);
    Value* x = states_.after_final_norm;
    for (size_t j = 0; j < head.blocks.size(); ++j) {
      const std::string part = concat(name, ".", j, ".linear");
      std::vector<Value*> inputs = {x, rewriter_.add_constant(head.blocks[j].weight, part + ".weight")};
      if (head.blocks[j].bias) inputs.push_back(rewriter_.add_constant(*head.blocks[j].bias, part + ".bias"));
      Value* inner = emit("Linear", std::string(kQuernDomain), inputs, part);
      x = emit("Add", "", {x, emit("Swish", "", {inner}, concat(name, ".", j, ".act"))},
               concat(name, ".", j, ".add"));
    }
    std::vector<Value*> inputs = {x};
    if (head.projection) {
      inputs.push_back(
          rewriter_.add_constant(*head.projection, concat(name, ".", head.blocks.size(), ".weight")));
    } else {
      inputs.push_back(states_.head->input(1));
      if (states_.head->input(2) != nullptr) inputs.push_back(states_.head->input(2));
    }
    const std::string output = runtime::medusa_output(number);
    rewriter_.add_output(emit("Linear", std::string(kQuernDomain), inputs, output), output);
  }

 private:
  Value* emit(std::string op, std::string domain, std::vector<Value*> inputs, const std::string& name) {
    return rewriter_
        .add_node({.op = std::move(op),
                   .domain = std::move(domain),
                   .name = name,
                   .inputs = std::move(inputs),
                   .outputs = {OutputSpec{.name = name}}})
        ->output();
  }

  Rewriter& rewriter_;
  const runtime::HiddenStates& states_;
};

}  // namespace

InsertMedusaHeads::InsertMedusaHeads()
    : Pass("insert-medusa-heads", "add heads that guess the tokens behind the next one") {
  option("heads", &heads_, "How many; 0: as many as the file has.");
  option(
      "weights", &weights_,
      "A safetensors file with trained heads, or 'fresh': heads to be trained, that say what the model says. "
      "Empty: no heads.");
}

PassReport InsertMedusaHeads::run(Graph& graph, PassContext& context) {
  PassReport report;
  if (weights_.empty() || runtime::count_medusa_heads(graph) > 0) return report;
  runtime::HiddenStates states;
  try {
    states = runtime::find_hidden_states(graph);
  } catch (const Error& error) {
    if (context.explain) report.failures.push_back({"the graph", error.message()});
    return report;
  }
  const Sizes sizes = sizes_of(states);
  if (heads_ < 0 || (weights_ == "fresh" && heads_ == 0))
    throw_error(ErrorCode::InvalidArgument, "insert-medusa-heads: heads is ", heads_,
                "; fresh heads need a number of them");
  std::vector<MedusaHead> heads =
      weights_ == "fresh" ? fresh_heads(heads_, sizes.width) : read_medusa_heads(weights_);
  if (heads_ > static_cast<int64_t>(heads.size())) {
    throw_error(ErrorCode::InvalidArgument, "insert-medusa-heads: ", heads_, " heads are wanted, '", weights_,
                "' has ", heads.size());
  }
  if (heads_ > 0) heads.resize(static_cast<size_t>(heads_));
  check(heads, sizes, weights_);
  Rewriter rewriter(graph);
  HeadBuilder builder(rewriter, states);
  for (size_t k = 0; k < heads.size(); ++k) builder.add(heads[k], k);
  rewriter.commit();
  report.changes = 1;
  report.notes.push_back(concat("added ", heads.size(), " Medusa heads"));
  return report;
}

}  // namespace quern::passes
