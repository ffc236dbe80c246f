#include "calibrate/compare_tensors.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "ir/error.h"

namespace quern::calibrate {
namespace {

using Clock = std::chrono::steady_clock;

struct Sums {
  double reference = 0;  // squares
  double candidate = 0;
  double product = 0;
  double error = 0;  // squares
  double max_error = 0;
  std::vector<double> pooled_cosines;
};

double cosine_of(double product, double squares_a, double squares_b, bool equal) {
  const double norms = std::sqrt(squares_a) * std::sqrt(squares_b);
  return norms == 0 ? (equal ? 1 : 0) : product / norms;
}

// Of the means over the tokens of two [1, tokens, features].
double pooled_cosine(const Tensor& a, const Tensor& b) {
  const int64_t features = a.dim(2);
  double product = 0, squares_a = 0, squares_b = 0;
  for (int64_t f = 0; f < features; ++f) {
    double sum_a = 0, sum_b = 0;
    for (int64_t at = f; at < a.size(); at += features) {
      sum_a += a.at(at);
      sum_b += b.at(at);
    }
    product += sum_a * sum_b;
    squares_a += sum_a * sum_a;
    squares_b += sum_b * sum_b;
  }
  return cosine_of(product, squares_a, squares_b, squares_a == squares_b);
}

bool is_numeric(DType dtype) {
  return is_floating(dtype) || is_integer(dtype);
}

int64_t argmax(const Tensor& rows, int64_t row) {
  const int64_t classes = rows.dim(1);
  int64_t best = 0;
  for (int64_t i = 1; i < classes; ++i) {
    if (rows.at(row * classes + i) > rows.at(row * classes + best)) best = i;
  }
  return best;
}

class TensorComparer {
 public:
  TensorComparer(const Graph& reference, const Graph& candidate, const TensorSamples& data)
      : graph_(reference), reference_(reference), candidate_(candidate), data_(data), batch_(data.batch) {
    for (const GraphOutput& output : candidate.outputs()) candidate_names_.push_back(output.name);
  }

  TensorComparison run(const TensorCompareOptions& options) {
    for (int64_t first = 0; first < data_.count; first += batch_) {
      add_sample(first);
      if (options.progress) options.progress(first + batch_, data_.count);
    }
    return finish();
  }

 private:
  runtime::NamedValues timed_run(const runtime::Interpreter& interpreter, const char* name,
                                 const runtime::NamedValues& inputs, double& seconds) const {
    const Clock::time_point start = Clock::now();
    runtime::NamedValues values =
        with_context(std::string("running the ") + name, [&] { return interpreter.run(inputs); });
    seconds += std::chrono::duration<double>(Clock::now() - start).count();
    return values;
  }

  void add_sample(int64_t first) {
    const runtime::NamedValues inputs = data_.inputs(first, batch_);
    const runtime::NamedValues reference =
        timed_run(reference_, "original", inputs, result_.reference_seconds);
    const runtime::NamedValues candidate =
        timed_run(candidate_, "candidate", inputs, result_.candidate_seconds);
    for (const GraphOutput& output : graph_.outputs()) {
      if (std::find(candidate_names_.begin(), candidate_names_.end(), output.name) ==
          candidate_names_.end()) {
        throw_error(ErrorCode::InvalidArgument, "the candidate has no output '", output.name, "'");
      }
      const runtime::RuntimeValue& value = reference.at(output.name);
      if (!is_numeric(value.dtype()) || value.is_sequence()) continue;
      add_output(output.name, value.dense(), candidate.at(output.name).dense(), first);
    }
  }

  void add_output(const std::string& name, const Tensor& reference, const Tensor& candidate, int64_t first) {
    if (reference.shape() != candidate.shape()) {
      throw_error(ErrorCode::InvalidArgument, "output '", name, "' has the shape ",
                  to_string(reference.shape()), " of the original and ", to_string(candidate.shape()),
                  " of the candidate");
    }
    Sums& sums = sums_[name];
    for (int64_t i = 0; i < reference.size(); ++i) {
      const double a = reference.at(i);
      const double b = candidate.at(i);
      if (std::isnan(a) != std::isnan(b)) {
        throw_error(ErrorCode::InvalidModel, "output '", name, "' is NaN at element ", i, " of sample ",
                    first, " with the ", std::isnan(a) ? "original" : "candidate", " alone");
      }
      if (std::isnan(a) || (a == b && std::isinf(a))) continue;
      sums.reference += a * a;
      sums.candidate += b * b;
      sums.product += a * b;
      sums.error += (a - b) * (a - b);
      sums.max_error = std::max(sums.max_error, std::abs(a - b));
    }
    if (data_.are_texts && reference.rank() == 3 && reference.size() > 0)
      sums.pooled_cosines.push_back(pooled_cosine(reference, candidate));
    const bool classes =
        data_.label && reference.rank() == 2 && reference.dim(0) == batch_ && is_floating(reference.dtype());
    if (classes && (classifier_.empty() || classifier_ == name)) {
      classifier_ = name;
      add_classes(reference, candidate, first);
    }
  }

  void add_classes(const Tensor& reference, const Tensor& candidate, int64_t first) {
    for (int64_t row = 0; row < batch_; ++row) {
      const int64_t label = data_.label(first + row);
      const int64_t a = argmax(reference, row);
      const int64_t b = argmax(candidate, row);
      reference_right_.push_back({a == label ? 1.0 : 0.0, 1});
      candidate_right_.push_back({b == label ? 1.0 : 0.0, 1});
      same_.push_back({a == b ? 1.0 : 0.0, 1});
    }
  }

  static Figure share(const std::vector<Cluster>& clusters) {
    double sum = 0;
    for (const Cluster& cluster : clusters) sum += cluster.sum;
    return {.value = sum / static_cast<double>(clusters.size()), .interval = bootstrap_interval(clusters)};
  }

  static std::optional<OutputCloseness::Pooled> summary_of(const std::vector<double>& cosines) {
    if (cosines.empty()) return {};
    const double sum = std::accumulate(cosines.begin(), cosines.end(), 0.0);
    return OutputCloseness::Pooled{.mean = sum / static_cast<double>(cosines.size()),
                                   .least = *std::min_element(cosines.begin(), cosines.end())};
  }

  TensorComparison finish() {
    result_.samples = data_.count;
    for (const GraphOutput& output : graph_.outputs()) {
      const auto found = sums_.find(output.name);
      if (found == sums_.end()) continue;
      const Sums& sums = found->second;
      const double infinity = std::numeric_limits<double>::infinity();
      result_.outputs.push_back(
          {.name = output.name,
           .max_abs_error = sums.max_error,
           .sqnr_db = sums.error == 0 ? infinity : 10 * std::log10(sums.reference / sums.error),
           .cosine = cosine_of(sums.product, sums.reference, sums.candidate, sums.error == 0),
           .pooled_cosine = summary_of(sums.pooled_cosines)});
    }
    result_.labelled = !classifier_.empty();
    if (result_.labelled) {
      result_.reference_accuracy = share(reference_right_);
      result_.candidate_accuracy = share(candidate_right_);
      result_.agreement = share(same_);
    }
    return std::move(result_);
  }

  const Graph& graph_;
  runtime::Interpreter reference_;
  runtime::Interpreter candidate_;
  const TensorSamples& data_;
  int64_t batch_ = 1;
  std::vector<std::string> candidate_names_;
  std::map<std::string, Sums> sums_;
  std::string classifier_;  // the output that is one
  std::vector<Cluster> reference_right_;
  std::vector<Cluster> candidate_right_;
  std::vector<Cluster> same_;
  TensorComparison result_;
};

// As many at once as the graph's first input states.
TensorSamples samples_of(const Graph& graph, const TensorData& data) {
  TensorSamples samples{.count = data.samples()};
  if (!graph.inputs().empty() && graph.inputs().front()->has_shape()) {
    const SymShape& shape = graph.inputs().front()->shape();
    if (!shape.empty()) samples.batch = shape.front().as_constant().value_or(1);
  }
  if (samples.batch < 1 || data.samples() % samples.batch != 0) {
    throw_error(ErrorCode::BadData, "'", data.source(), "' has ", data.samples(),
                " samples, and the model takes ", samples.batch, " at a time; give a multiple of that");
  }
  samples.inputs = [&data](int64_t first, int64_t count) {
    runtime::NamedValues inputs;
    for (auto& [name, array] : data.slice(first, count)) inputs[name] = array;
    return inputs;
  };
  if (data.labelled()) samples.label = [&data](int64_t sample) { return data.label(sample); };
  return samples;
}

}  // namespace

TensorComparison compare_tensors(const Graph& reference, const Graph& candidate, const TensorSamples& samples,
                                 const TensorCompareOptions& options) {
  return TensorComparer(reference, candidate, samples).run(options);
}

TensorComparison compare_tensors(const Graph& reference, const Graph& candidate, const TensorData& data,
                                 const TensorCompareOptions& options) {
  return compare_tensors(reference, candidate, samples_of(reference, data), options);
}

}  // namespace quern::calibrate
