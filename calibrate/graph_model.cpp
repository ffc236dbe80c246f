#include "calibrate/graph_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ir/schema.h"

namespace quern::calibrate {

int64_t table_rows(const Value& ids) {
  int64_t rows = 0;
  for (const Use& use : ids.uses()) {
    const Node& node = *use.node;
    int64_t found = 0;
    if (node.is("Embedding", kQuernDomain) && use.input == 1 && node.input(0)->has_shape()) {
      found = node.input(0)->shape().at(0).as_constant().value_or(0);
    } else if (node.is("Gather") && use.input == 1 && node.input(0)->has_shape() &&
               node.int_attribute("axis", 0) == 0) {
      found = node.input(0)->shape().at(0).as_constant().value_or(0);
    } else if (node.is("Cast") || node.is("Reshape") || node.is("Unsqueeze") || node.is("Identity")) {
      if (use.input == 0) found = table_rows(*node.output());
    }
    if (found > 0 && (rows == 0 || found < rows)) rows = found;
  }
  return rows;
}

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

class GraphModel : public ScoredModel {
 public:
  explicit GraphModel(std::shared_ptr<const Graph> graph)
      : graph_(std::move(graph)),
        inputs_(*graph_),
        interpreter_(*graph_),
        output_(logits_output(*graph_)),
        vocabulary_(table_rows(inputs_.ids())) {
    batches_ = inputs_.takes_batches();
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

  void expect(std::span<const std::span<const int64_t>> sequences) override {
    expected_.assign(sequences.begin(), sequences.end());
    next_ = computed_ = 0;
  }

  void start(std::span<const int64_t> ids, int64_t) override {
    const bool announced = next_ < expected_.size() && expected_[next_].data() == ids.data() &&
                           expected_[next_].size() == ids.size();
    if (announced) {
      if (next_ >= computed_) compute_expected();
      const bool held = next_ < computed_;
      const size_t row = batch_.size() - (computed_ - next_);
      ++next_;
      if (held) {
        logits_ = batch_[row];
        return;
      }
    }
    logits_ = run_batch(std::span(&ids, 1)).front();
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
  using Sequences = std::span<const std::span<const int64_t>>;

  // The logits of each sequence, [1, ...]. All have one length.
  std::vector<Tensor> run_batch(Sequences sequences) const {
    runtime::NamedValues outputs = interpreter_.run(inputs_.fill(sequences));
    Tensor all = outputs.at(output_.name).dense();
    outputs.clear();
    const auto count = static_cast<int64_t>(sequences.size());
    if ((all.rank() != 2 && all.rank() != 3) || all.dim(0) != count || all.size() == 0) {
      throw_error(ErrorCode::Unsupported, "output '", output_.name, "' has the shape ",
                  to_string(all.shape()), " for ", count, count == 1 ? " sequence" : " sequences",
                  "; expected logits: [1, tokens, vocabulary] or [1, classes]");
    }
    if (all.dtype() != DType::F32) all = all.cast(DType::F32);
    if (count == 1) return {all};
    Shape shape = all.shape();
    shape[0] = 1;
    const auto each = static_cast<size_t>(all.size() / count);
    std::vector<Tensor> parts;
    for (size_t i = 0; i < sequences.size(); ++i)
      parts.push_back(Tensor::from<float>(shape, all.data<float>().subspan(i * each, each)));
    return parts;
  }

  // How many of the expected sequences from the next on are computed together.
  size_t batch_size() const {
    constexpr size_t kMost = 32;
    constexpr size_t kMostTokens = 4096;
    constexpr size_t kMostLogits = size_t{8} << 20;
    const size_t length = expected_[next_].size();
    const size_t logits = static_cast<size_t>(width_) * (kind_ == Kind::Classifier ? 1 : length);
    const size_t most = std::min({kMost, kMostTokens / std::max<size_t>(1, length), kMostLogits / logits});
    size_t count = 1;
    while (count < most && next_ + count < expected_.size() && expected_[next_ + count].size() == length)
      ++count;
    return count;
  }

  // Leaves computed_ as it is where batches do not do.
  void compute_expected() {
    if (!batches_) return;
    const size_t count = batch_size();
    if (count < 2) return;
    const Sequences sequences = std::span(expected_).subspan(next_, count);
    try {
      batch_ = run_batch(sequences);
    } catch (const Error& error) {
      // Exporters fix a batch of one in Reshapes; the graph still runs for that.
      if (error.code() == ErrorCode::OutOfMemory || error.code() == ErrorCode::Internal) throw;
      batches_ = false;
      return;
    }
    if (!checked_) {
      checked_ = true;
      batches_ = agrees(batch_.front(), sequences.front()) && agrees(batch_.back(), sequences.back());
      if (!batches_) return;
    }
    computed_ = next_ + count;
  }

  bool agrees(const Tensor& logits, std::span<const int64_t> ids) const {
    constexpr float kClose = 1e-4F;
    const Tensor alone = run_batch(std::span(&ids, 1)).front();
    if (alone.shape() != logits.shape()) return false;
    const auto a = alone.data<float>(), b = logits.data<float>();
    float largest = 0, difference = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::fabs(a[i]));
      difference = std::max(difference, std::fabs(a[i] - b[i]));
    }
    return difference <= kClose * largest;
  }

  std::shared_ptr<const Graph> graph_;
  TokenInputs inputs_;
  runtime::Interpreter interpreter_;
  const GraphOutput& output_;
  int64_t vocabulary_;
  int64_t width_ = 0;
  Kind kind_ = Kind::NextToken;
  Tensor logits_;
  std::vector<const float*> rows_;

  std::vector<std::span<const int64_t>> expected_;
  size_t next_ = 0;            // of expected_, for start()
  size_t computed_ = 0;        // batch_ holds the last before this
  std::vector<Tensor> batch_;  // the logits of each
  bool batches_ = false;
  bool checked_ = false;  // that batches give what single sequences do
};

}  // namespace

std::unique_ptr<ScoredModel> make_graph_model(std::shared_ptr<const Graph> graph) {
  return std::make_unique<GraphModel>(std::move(graph));
}

}  // namespace quern::calibrate
