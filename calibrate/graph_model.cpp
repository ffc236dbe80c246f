#include "calibrate/graph_model.h"

#include <array>

namespace quern::calibrate {
namespace {

const GraphOutput& logits_output(const Graph& graph) {
  const GraphOutput* first = nullptr;
  for (const GraphOutput& output : graph.outputs()) {
    if (output.name == "logits") return output;
    if (first == nullptr &&
        (is_floating(output.value->dtype()) || output.value->dtype() == DType::Undefined)) {
      first = &output;
    }
  }
  if (first == nullptr) {
    throw_error(ErrorCode::Unsupported, "graph '", graph.name(),
                "' has no output of a floating type that could be logits");
  }
  return *first;
}

// Rows of the tables that `ids` looks up, also through casts and reshapes; 0: none found.
int64_t table_rows(const Value& ids) {
  int64_t rows = 0;
  for (const Use& use : ids.uses()) {
    const Node& node = *use.node;
    int64_t found = 0;
    if (node.is("Gather") && use.input == 1 && node.input(0)->has_shape() &&
        node.int_attribute("axis", 0) == 0) {
      found = node.input(0)->shape().at(0).as_constant().value_or(0);
    } else if (node.is("Cast") || node.is("Reshape") || node.is("Unsqueeze") || node.is("Identity")) {
      if (use.input == 0) found = table_rows(*node.output());
    }
    if (found > 0 && (rows == 0 || found < rows)) rows = found;
  }
  return rows;
}

class GraphModel : public ScoredModel {
 public:
  explicit GraphModel(std::shared_ptr<const Graph> graph)
      : graph_(std::move(graph)),
        inputs_(*graph_),
        interpreter_(*graph_),
        output_(logits_output(*graph_)),
        vocabulary_(table_rows(inputs_.ids())) {
    // What the types don't tell, one token does.
    const std::array<int64_t, 1> probe = {0};
    start(probe, 0);
    width_ = logits_.dim(-1);
    kind_ = logits_.rank() == 2 ? Kind::Classifier : Kind::NextToken;
  }

  Kind kind() const override { return kind_; }
  int64_t width() const override { return width_; }
  int64_t vocabulary() const override { return vocabulary_; }
  int64_t context() const override { return inputs_.fixed_length(); }

  void start(std::span<const int64_t> ids, int64_t) override {
    runtime::NamedValues outputs = interpreter_.run(inputs_.fill(ids));
    logits_ = outputs.at(output_.name).dense();
    outputs.clear();
    if ((logits_.rank() != 2 && logits_.rank() != 3) || logits_.dim(0) != 1 || logits_.size() == 0) {
      throw_error(ErrorCode::Unsupported, "output '", output_.name, "' has the shape ",
                  to_string(logits_.shape()),
                  " for one sequence; expected logits: [1, tokens, vocabulary] or [1, classes]");
    }
    if (logits_.dtype() != DType::F32) logits_ = logits_.cast(DType::F32);
  }

  std::span<const float* const> logits(int64_t first, int64_t count) override {
    const int64_t width = logits_.dim(-1);
    if ((first + count) * width > logits_.size()) {
      throw_error(ErrorCode::Unsupported, "output '", output_.name, "' has the shape ",
                  to_string(logits_.shape()), "; scoring needs logits of every position, and position ",
                  first + count - 1, " has none");
    }
    const float* data = logits_.data<float>().data();
    rows_.clear();
    for (int64_t i = 0; i < count; ++i) rows_.push_back(data + (first + i) * width);
    return rows_;
  }

 private:
  std::shared_ptr<const Graph> graph_;
  TokenInputs inputs_;
  runtime::Interpreter interpreter_;
  const GraphOutput& output_;
  int64_t vocabulary_;
  int64_t width_ = 0;
  Kind kind_ = Kind::NextToken;
  Tensor logits_;
  std::vector<const float*> rows_;
};

}  // namespace

std::unique_ptr<ScoredModel> make_graph_model(std::shared_ptr<const Graph> graph) {
  return std::make_unique<GraphModel>(std::move(graph));
}

}  // namespace quern::calibrate
