#include "passes/quantize/layer_error.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/float_types.h"
#include "ir/parallel_for.h"
#include "ir/segment_quantizer.h"
#include "passes/quantize/cholesky.h"

namespace quern::passes {
namespace {

using calibrate::SquareMatrix;
using Granularity = QuantScheme::Granularity;

// y += a * x
void add_scaled(float* __restrict y, const float* __restrict x, float a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] += a * x[i];
}

double dot(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

double mean_diagonal(const SquareMatrix& matrix) {
  double sum = 0;
  for (int64_t i = 0; i < matrix.size; ++i) sum += matrix.at(i, i);
  return matrix.size == 0 ? 0 : sum / static_cast<double>(matrix.size);
}

SquareMatrix damped(const SquareMatrix& matrix, double damping) {
  SquareMatrix out = matrix;
  // A layer that was never reached has moments of zero: any positive diagonal makes that rounding to nearest.
  const double mean = mean_diagonal(matrix);
  const double add = mean > 0 ? damping * mean : 1.0;
  for (int64_t i = 0; i < out.size; ++i) out.at(i, i) += add;
  return out;
}

// The damped matrix and its factor. Damping grows until there is one.
struct Factored {
  SquareMatrix matrix;
  SquareMatrix lower;
  double damping = 0;
};

Factored factor(const SquareMatrix& moments, double damping) {
  constexpr double kMostDamping = 1e3;
  for (const double each : moments.elements) {
    if (!std::isfinite(each)) throw_error(ErrorCode::BadData, "second moments of activations are not finite");
  }
  for (; damping <= kMostDamping; damping = damping == 0 ? 1e-4 : damping * 10) {
    Factored result{.matrix = damped(moments, damping), .damping = damping};
    result.lower = result.matrix;
    if (cholesky(result.lower)) return result;
  }
  throw_error(ErrorCode::BadData, "second moments of activations are not positive definite, however damped");
}

// The Hessian in the two forms that a row needs, shared by all rows.
struct Problem {
  int64_t cols = 0;
  int64_t group = 0;              // columns that share a scale
  std::vector<float> hessian;     // damped, [cols, cols]
  std::vector<float> upper;       // of the inverse, in the order `order`, [cols, cols]
  std::vector<int64_t> order;     // the columns as they are quantized
  std::vector<float> importance;  // the diagonal

  const float* row(int64_t k) const { return hessian.data() + k * cols; }
};

Problem make_problem(const SquareMatrix& moments, const QuantizeOptions& options, double damping,
                     double* used_damping) {
  Problem problem;
  const int64_t n = moments.size;
  problem.cols = n;
  const QuantScheme& scheme = options.scheme;
  problem.group = scheme.granularity == Granularity::Group ? std::min(scheme.group_size, n) : n;
  problem.order.resize(static_cast<size_t>(n));
  std::iota(problem.order.begin(), problem.order.end(), 0);
  std::stable_sort(problem.order.begin(), problem.order.end(),
                   [&](int64_t a, int64_t b) { return moments.at(a, a) > moments.at(b, b); });
  SquareMatrix ordered(n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j)
      ordered.at(i, j) =
          moments.at(problem.order[static_cast<size_t>(i)], problem.order[static_cast<size_t>(j)]);
  }
  SquareMatrix upper;
  Factored factored;
  for (double try_damping = damping;; try_damping = std::max(factored.damping * 10, 1e-4)) {
    factored = factor(ordered, try_damping);
    upper = inverse_upper(factored.lower);
    if (upper.size == n) break;
  }
  *used_damping = factored.damping;
  problem.upper.assign(upper.elements.begin(), upper.elements.end());
  const SquareMatrix matrix = damped(moments, factored.damping);
  problem.hessian.assign(matrix.elements.begin(), matrix.elements.end());
  // Scales are chosen for inputs as they are: damping is for the inverse.
  const double floor = 1e-6 * mean_diagonal(moments);
  for (int64_t i = 0; i < n; ++i) {
    const double own = std::max(moments.at(i, i), floor);
    problem.importance.push_back(own > 0 ? static_cast<float>(own) : 1.0F);
  }
  return problem;
}

// One row of the weight while its codes are found.
class RowSolver {
 public:
  RowSolver(const Problem& problem, const SegmentQuantizer& segment)
      : problem_(problem), segment_(segment), steps_(static_cast<size_t>(problem.cols)) {}

  void solve(std::span<const float> target, int sweeps) {
    target_ = target;
    choose_scales();
    run_gptq();
    find_gradient();
    for (int i = 0; i < sweeps; ++i) {
      const bool moved = improve_codes();
      if (!improve_scales() && !moved) break;
    }
  }

  void clip(std::span<const float> target, int sweeps) {
    target_ = target;
    find_candidates();
    find_gradient();
    while (sweeps-- > 0 && improve_ranges()) {
    }
  }

  const std::vector<float>& steps() const { return steps_; }
  const std::vector<Affine>& affines() const { return affines_; }
  double error() const { return dot(error_.data(), gradient_.data(), problem_.cols); }

 private:
  const Affine& affine_of(int64_t k) const { return affines_[static_cast<size_t>(k / problem_.group)]; }
  int64_t groups() const { return (problem_.cols + problem_.group - 1) / problem_.group; }

  void choose_scales() {
    affines_.clear();
    for (int64_t g = 0; g < groups(); ++g) {
      const auto first = static_cast<size_t>(g * problem_.group);
      const size_t count = std::min(static_cast<size_t>(problem_.group), target_.size() - first);
      const std::span<const float> part = target_.subspan(first, count);
      affines_.push_back(segment_.choose(part, range_of(part, static_cast<int64_t>(first)),
                                         std::span(problem_.importance).subspan(first, count)));
    }
  }

  // A range of a group, with the codes that are nearest then.
  struct Candidate {
    Affine affine;
    std::vector<float> steps;
  };

  void find_candidates() {
    constexpr int kShares = 13;
    constexpr float kStep = 0.05F;
    affines_.clear();
    candidates_.clear();
    for (int64_t g = 0; g < groups(); ++g) {
      const auto first = static_cast<size_t>(g * problem_.group);
      const size_t count = std::min(static_cast<size_t>(problem_.group), target_.size() - first);
      const std::span<const float> part = target_.subspan(first, count);
      const ValueRange whole = range_of(part, static_cast<int64_t>(first));
      std::vector<Candidate>& all = candidates_.emplace_back();
      for (int i = 0; i < kShares; ++i) {
        const float share = 1 - kStep * static_cast<float>(i);
        Candidate& each = all.emplace_back();
        // Without values: the largest of them would decide.
        each.affine = i == 0 ? segment_.choose(part, whole)
                             : segment_.choose({}, {whole.min * share, whole.max * share});
        for (const float value : part) each.steps.push_back(segment_.steps(value, each.affine));
      }
      affines_.push_back(all.front().affine);
      std::copy(all.front().steps.begin(), all.front().steps.end(),
                steps_.begin() + static_cast<ptrdiff_t>(first));
    }
  }

  bool improve_ranges() {
    bool moved = false;
    for (int64_t g = 0; g < groups(); ++g) {
      const int64_t first = g * problem_.group;
      const std::vector<Candidate>& all = candidates_[static_cast<size_t>(g)];
      const auto count = static_cast<int64_t>(all.front().steps.size());
      Affine& affine = affines_[static_cast<size_t>(g)];
      std::vector<float> by(static_cast<size_t>(count));
      const Candidate* best = nullptr;
      double most = 0;
      for (const Candidate& each : all) {
        double gain = 0;
        for (int64_t k = 0; k < count; ++k) {
          const auto i = static_cast<size_t>(k), at = static_cast<size_t>(first + k);
          by[i] = each.steps[i] * each.affine.scale - steps_[at] * affine.scale;
          gain += 2 * static_cast<double>(by[i]) * static_cast<double>(gradient_[at]);
        }
        for (int64_t k = 0; k < count; ++k) {
          const float own = by[static_cast<size_t>(k)];
          if (own != 0)
            gain -= static_cast<double>(own) * dot(problem_.row(first + k) + first, by.data(), count);
        }
        if (!(gain > most * (1 + 1e-6))) continue;
        most = gain;
        best = &each;
      }
      if (best == nullptr) continue;
      for (int64_t k = 0; k < count; ++k) {
        const auto i = static_cast<size_t>(k), at = static_cast<size_t>(first + k);
        const float difference = best->steps[i] * best->affine.scale - steps_[at] * affine.scale;
        steps_[at] = best->steps[i];
        if (difference != 0) move(first + k, difference);
      }
      affine = best->affine;
      moved = true;
    }
    return moved;
  }

  void run_gptq() {
    const int64_t n = problem_.cols;
    work_.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i)
      work_[static_cast<size_t>(i)] = target_[static_cast<size_t>(problem_.order[static_cast<size_t>(i)])];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t k = problem_.order[static_cast<size_t>(i)];
      const Affine& affine = affine_of(k);
      const float value = work_[static_cast<size_t>(i)];
      const float q = segment_.steps(value, affine);
      steps_[static_cast<size_t>(k)] = q;
      const float* row = problem_.upper.data() + i * n;
      const float move = (value - q * affine.scale) / row[i];
      add_scaled(work_.data() + i + 1, row + i + 1, -move, n - i - 1);
    }
  }

  void find_gradient() {
    const int64_t n = problem_.cols;
    error_.resize(static_cast<size_t>(n));
    gradient_.assign(static_cast<size_t>(n), 0.0F);
    for (int64_t k = 0; k < n; ++k) {
      const auto i = static_cast<size_t>(k);
      error_[i] = target_[i] - steps_[i] * affine_of(k).scale;
      add_scaled(gradient_.data(), problem_.row(k), error_[i], n);
    }
  }

  // Moves the weight that column k stands for by `by`.
  void move(int64_t k, float by) {
    error_[static_cast<size_t>(k)] -= by;
    add_scaled(gradient_.data(), problem_.row(k), -by, problem_.cols);
  }

  bool improve_codes() {
    bool moved = false;
    for (int64_t k = 0; k < problem_.cols; ++k) {
      const auto i = static_cast<size_t>(k);
      const Affine& affine = affine_of(k);
      if (affine.scale == 0) continue;
      const float best = steps_[i] * affine.scale + gradient_[i] / problem_.row(k)[k];
      const float q = segment_.steps(best, affine);
      if (q == steps_[i]) continue;
      const float by = (q - steps_[i]) * affine.scale;
      // Rounding of the gradient must not move codes to and fro.
      const float gain = by * (2 * gradient_[i] - by * problem_.row(k)[k]);
      if (!(gain > 0)) continue;
      steps_[i] = q;
      move(k, by);
      moved = true;
    }
    return moved;
  }

  bool improve_scales() {
    bool moved = false;
    for (int64_t g = 0; g < groups(); ++g) {
      Affine& affine = affines_[static_cast<size_t>(g)];
      const int64_t first = g * problem_.group;
      const int64_t last = std::min(first + problem_.group, problem_.cols);
      double slope = 0;
      double curvature = 0;
      for (int64_t k = first; k < last; ++k) {
        const auto i = static_cast<size_t>(k);
        if (steps_[i] == 0) continue;
        slope += static_cast<double>(steps_[i]) * static_cast<double>(gradient_[i]);
        curvature += static_cast<double>(steps_[i]) *
                     dot(problem_.row(k) + first, steps_.data() + first, last - first);
      }
      if (!(curvature > 0) || affine.scale == 0) continue;
      const auto wanted = static_cast<float>(static_cast<double>(affine.scale) + slope / curvature);
      const float scale = segment_.rounded_scale(wanted);
      const double by = static_cast<double>(scale) - static_cast<double>(affine.scale);
      if (scale == affine.scale || scale == 0 || !(by * (2 * slope - by * curvature) > 0)) continue;
      affine.scale = scale;
      for (int64_t k = first; k < last; ++k) {
        const auto i = static_cast<size_t>(k);
        if (steps_[i] != 0) move(k, static_cast<float>(by) * steps_[i]);
      }
      moved = true;
    }
    return moved;
  }

  const Problem& problem_;
  const SegmentQuantizer& segment_;
  std::span<const float> target_;
  std::vector<float> steps_;  // codes minus zero points
  std::vector<Affine> affines_;
  std::vector<float> work_;
  std::vector<float> error_;
  std::vector<float> gradient_;  // the Hessian times the error
  std::vector<std::vector<Candidate>> candidates_;
};

double weighted_square(const std::vector<float>& vector, const Problem& problem) {
  double sum = 0;
  for (int64_t k = 0; k < problem.cols; ++k) {
    const float value = vector[static_cast<size_t>(k)];
    if (value != 0) sum += static_cast<double>(value) * dot(problem.row(k), vector.data(), problem.cols);
  }
  return sum;
}

// Solves rows in blocks, so that what is not codes yet stays small.
class LayerSolver {
 public:
  LayerSolver(const Problem& problem, const QuantizeOptions& options, const LayerErrorOptions& how,
              LayerErrorResult& result)
      : problem_(problem), options_(options), how_(how), segment_(options), result_(result) {
    groups_ = (problem.cols + problem.group - 1) / std::max<int64_t>(1, problem.group);
  }

  void run(std::span<const float> weight, std::span<const float> target) {
    const int64_t cols = problem_.cols;
    const int64_t rows = cols == 0 ? 0 : static_cast<int64_t>(weight.size()) / cols;
    // Rounding to nearest has the right shapes already; its codes and scales are replaced.
    result_.weight = quantize_rows(weight, cols, options_);
    constexpr int64_t kBlockRows = 1024;
    double signal = 0;
    for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
      const int64_t count = std::min(kBlockRows, rows - begin);
      const auto at = static_cast<size_t>(begin * cols);
      const auto length = static_cast<size_t>(count * cols);
      solve_block(weight.subspan(at, length), target.subspan(at, length));
      for (int64_t n = 0; n < count; ++n) {
        const Row& row = rows_[static_cast<size_t>(n)];
        signal += row.signal;
        result_.before += row.before;
        result_.after += row.after;
        store(row, begin + n, weight.subspan(at + static_cast<size_t>(n * cols), static_cast<size_t>(cols)));
      }
    }
    result_.before = signal > 0 ? result_.before / signal : 0;
    result_.after = signal > 0 ? result_.after / signal : 0;
  }

 private:
  struct Row {
    std::vector<float> steps;
    std::vector<Affine> affines;
    double signal = 0, before = 0, after = 0;
  };

  void solve_block(std::span<const float> weight, std::span<const float> target) {
    const int64_t cols = problem_.cols;
    const int64_t count = static_cast<int64_t>(weight.size()) / cols;
    QuantizeOptions nearest = options_;
    nearest.method = ScaleMethod::Range;
    nearest.clip = {};
    nearest.importance = {};
    const std::vector<float> rounded = dequantize(quantize_rows(target, cols, nearest)).to_floats();
    rows_.resize(static_cast<size_t>(count));
    parallel_for(count, {.least = 4}, [&](int64_t first, int64_t length) {
      RowSolver solver(problem_, segment_);
      for (int64_t n = first; n < first + length; ++n) {
        const auto at = static_cast<size_t>(n * cols);
        const std::span<const float> own = target.subspan(at, static_cast<size_t>(cols));
        if (how_.clips_alone) {
          solver.clip(own, how_.sweeps);
        } else {
          solver.solve(own, how_.sweeps);
        }
        Row& row = rows_[static_cast<size_t>(n)];
        row.steps = solver.steps();
        row.affines = solver.affines();
        row.after = solver.error();
        std::vector<float> vector(target.begin() + static_cast<ptrdiff_t>(at),
                                  target.begin() + static_cast<ptrdiff_t>(at) + cols);
        row.signal = weighted_square(vector, problem_);
        for (size_t k = 0; k < vector.size(); ++k) vector[k] -= rounded[at + k];
        row.before = weighted_square(vector, problem_);
      }
    });
  }

  void store(const Row& row, int64_t n, std::span<const float> weight) {
    const QuantScheme& scheme = options_.scheme;
    for (int64_t g = 0; g < groups_; ++g) {
      const Affine& affine = row.affines[static_cast<size_t>(g)];
      result_.weight.scales.set(n * groups_ + g, static_cast<double>(affine.scale));
      if (!scheme.symmetric) result_.weight.zero_points.set_int(n * groups_ + g, affine.zero_point);
    }
    for (int64_t k = 0; k < problem_.cols; ++k) {
      const auto i = static_cast<size_t>(k);
      const Affine& affine = row.affines[static_cast<size_t>(k / problem_.group)];
      result_.weight.codes.set_int(n * problem_.cols + k,
                                   static_cast<int64_t>(row.steps[i]) + affine.zero_point);
      const auto value = static_cast<double>(weight[i]);
      const double error = value - static_cast<double>(row.steps[i]) * static_cast<double>(affine.scale);
      result_.error.add({value * value, error * error, static_cast<float>(std::fabs(error))});
    }
  }

  const Problem& problem_;
  const QuantizeOptions& options_;
  const LayerErrorOptions& how_;
  SegmentQuantizer segment_;
  LayerErrorResult& result_;
  int64_t groups_ = 0;
  std::vector<Row> rows_;
};

}  // namespace

LayerErrorResult minimize_layer_error(std::span<const float> weight, int64_t cols,
                                      const SquareMatrix& moments, const QuantizeOptions& options,
                                      const LayerErrorOptions& how, std::span<const float> target) {
  check_quantizable(options);
  const QuantScheme& scheme = options.scheme;
  if (!is_integer(scheme.code) || scheme.granularity == Granularity::Tensor) {
    throw_error(
        ErrorCode::Unsupported,
        "by the error of outputs, codes are found for integers with scales per channel or group, not for ",
        to_string(scheme));
  }
  if (moments.size != cols) {
    throw_error(ErrorCode::InvalidArgument, "moments of ", moments.size, " inputs for a weight that has ",
                cols);
  }
  LayerErrorResult result;
  const Problem problem = make_problem(moments, options, how.damping, &result.damping);
  for (int64_t k = 0; k < cols; ++k) result.silent_inputs += moments.at(k, k) > 0 ? 0 : 1;
  LayerSolver(problem, options, how, result).run(weight, target.empty() ? weight : target);
  return result;
}

std::vector<float> propagated_target(std::span<const float> weight, int64_t cols, const SquareMatrix& cross,
                                     const SquareMatrix& moments, double damping, double strength) {
  const Factored factored = factor(moments, damping);
  const double add = factored.matrix.at(0, 0) - moments.at(0, 0);
  std::vector<float> target(weight.begin(), weight.end());
  const int64_t rows = cols == 0 ? 0 : static_cast<int64_t>(weight.size()) / cols;
  parallel_for(rows, {.least = 8}, [&](int64_t first, int64_t count) {
    std::vector<double> wanted(static_cast<size_t>(cols));
    for (int64_t n = first; n < first + count; ++n) {
      const float* row = weight.data() + n * cols;
      // b = (C^T + add I) w, row by row of C.
      for (int64_t j = 0; j < cols; ++j) wanted[static_cast<size_t>(j)] = add * static_cast<double>(row[j]);
      for (int64_t i = 0; i < cols; ++i) {
        const auto w = static_cast<double>(row[i]);
        for (int64_t j = 0; j < cols; ++j) wanted[static_cast<size_t>(j)] += w * cross.at(i, j);
      }
      solve(factored.lower, wanted);
      for (int64_t j = 0; j < cols; ++j) {
        const double w = static_cast<double>(row[j]);
        target[static_cast<size_t>(n * cols + j)] =
            static_cast<float>(w + strength * (wanted[static_cast<size_t>(j)] - w));
      }
    }
  });
  return target;
}

}  // namespace quern::passes
