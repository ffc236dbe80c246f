#include "calibrate/train/heads.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "calibrate/train/matrix.h"
#include "ir/parallel_for.h"
#include "runtime/cpu/row_kernels.h"

namespace quern::calibrate::train {
namespace {

constexpr int64_t kLogitFloats = int64_t{4} << 20;  // made at a time

size_t cells(int64_t rows, int64_t cols) {
  return static_cast<size_t>(rows * cols);
}

}  // namespace

// --- forms ---

ResidualSilu::ResidualSilu(const std::string& name, int64_t width, int64_t blocks) : width_(width) {
  for (int64_t j = 0; j < blocks; ++j) {
    const std::string part = concat(name, ".", j, ".linear");
    blocks_.push_back({.weight = Parameter(part + ".weight", {width, width}, true),
                       .bias = Parameter(part + ".bias", {width}, false),
                       .input = {},
                       .inner = {}});
  }
}

void ResidualSilu::forward(const float* x, int64_t rows, float* y) {
  std::copy_n(x, cells(rows, width_), y);
  for (Block& block : blocks_) {
    block.input.assign(y, y + cells(rows, width_));
    block.inner.resize(cells(rows, width_));
    for (int64_t row = 0; row < rows; ++row)
      std::copy(block.bias.value.begin(), block.bias.value.end(), block.inner.begin() + row * width_);
    multiply_transposed(block.input.data(), block.weight.value.data(), block.inner.data(), rows, width_,
                        width_, Into::Add);
    for (size_t i = 0; i < block.inner.size(); ++i) y[i] += block.inner[i] / (1 + std::exp(-block.inner[i]));
  }
}

void ResidualSilu::backward(float* dy, int64_t rows) {
  change_.resize(cells(rows, width_));
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    for (size_t i = 0; i < change_.size(); ++i) {
      const float z = block->inner[i], s = 1 / (1 + std::exp(-z));
      change_[i] = dy[i] * s * (1 + z * (1 - s));
    }
    transposed_multiply(change_.data(), block->input.data(), block->weight.gradient.data(), width_, width_,
                        rows, Into::Add);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < width_; ++i)
        block->bias.gradient[static_cast<size_t>(i)] += change_[static_cast<size_t>(row * width_ + i)];
    }
    // Nobody asks for the gradient by the hidden states themselves.
    if (block + 1 != blocks_.rend())
      multiply(change_.data(), block->weight.value.data(), dy, rows, width_, width_, Into::Add);
  }
}

std::vector<Parameter*> ResidualSilu::parameters() {
  std::vector<Parameter*> all;
  for (Block& block : blocks_) all.insert(all.end(), {&block.weight, &block.bias});
  return all;
}

std::vector<Parameter*> Head::trained() {
  std::vector<Parameter*> all = form->parameters();
  if (trains_projection) all.push_back(projection.get());
  if (trains_projection && bias != nullptr) all.push_back(bias.get());
  return all;
}

// --- losses ---

void HeadScore::add(const HeadScore& more) {
  loss += more.loss;
  rows += more.rows;
  correct += more.correct;
}

namespace {

// `each` handles a row whose logits have become probabilities: its loss, and whether it is right.
template <class Each>
HeadScore over_rows(float* logits, int64_t rows, int64_t vocabulary, const Each& each) {
  std::vector<HeadScore> scores(static_cast<size_t>(rows));  // summed in order: the same sum on every machine
  parallel_for(rows, {.least = 16}, [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) {
      float* p = logits + row * vocabulary;
      cpu::row_kernels().softmax(p, p, vocabulary);
      each(row, p, scores[static_cast<size_t>(row)]);
    }
  });
  HeadScore total;
  for (const HeadScore& score : scores) total.add(score);
  return total;
}

constexpr double kLeast = 1e-30;  // probabilities below this are rounding

void add_bias(const Head& head, float* logits, int64_t rows) {
  if (head.bias == nullptr) return;
  const std::vector<float>& bias = head.bias->value;
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < bias.size(); ++i) *logits++ += bias[i];
  }
}

// Of logits that have become gradients.
void add_gradients(Head& head, const float* logits, const float* y, int64_t rows) {
  if (!head.trains_projection) return;
  const int64_t vocabulary = head.projection->shape[0], width = head.projection->shape[1];
  transposed_multiply(logits, y, head.projection->gradient.data(), vocabulary, width, rows, Into::Add);
  if (head.bias == nullptr) return;
  std::vector<float>& gradient = head.bias->gradient;
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += *logits++;
  }
}

// The teacher's distributions of some rows: of its hidden states, or of logits as they are.
void teach(const Head& head, const float* teacher, int64_t rows, float* taught) {
  const int64_t vocabulary = head.projection->shape[0], width = head.projection->shape[1];
  if (head.teacher_gives_logits) {
    std::copy_n(teacher, cells(rows, vocabulary), taught);
  } else {
    multiply_transposed(teacher, head.projection->value.data(), taught, rows, vocabulary, width, Into::Set);
    add_bias(head, taught, rows);
  }
  for (int64_t row = 0; row < rows; ++row)
    cpu::row_kernels().softmax(taught + row * vocabulary, taught + row * vocabulary, vocabulary);
}

}  // namespace

HeadScore cross_entropy(float* logits, int64_t rows, int64_t vocabulary, std::span<const int64_t> targets,
                        double scale) {
  const auto s = static_cast<float>(scale);
  return over_rows(logits, rows, vocabulary, [&](int64_t row, float* p, HeadScore& score) {
    const int64_t target = targets[static_cast<size_t>(row)];
    if (target < 0) {
      std::fill_n(p, vocabulary, 0.0f);
      return;
    }
    const double probability = p[target];
    score = {-std::log(std::max(probability, kLeast)), 1, std::max_element(p, p + vocabulary) - p == target};
    if (scale == 0) return;
    for (int64_t i = 0; i < vocabulary; ++i) p[i] *= s;
    p[target] -= s;
  });
}

HeadScore divergence(float* logits, int64_t rows, int64_t vocabulary, std::span<const float> teacher,
                     double scale) {
  const auto s = static_cast<float>(scale);
  return over_rows(logits, rows, vocabulary, [&](int64_t row, float* q, HeadScore& score) {
    const float* p = teacher.data() + row * vocabulary;
    double loss = 0;
    for (int64_t i = 0; i < vocabulary; ++i) {
      if (p[i] > 0)
        loss += p[i] * (std::log(static_cast<double>(p[i])) - std::log(std::max<double>(q[i], kLeast)));
    }
    score = {loss, 1, std::max_element(q, q + vocabulary) - q == std::max_element(p, p + vocabulary) - p};
    if (scale == 0) return;
    for (int64_t i = 0; i < vocabulary; ++i) q[i] = s * (q[i] - p[i]);
  });
}

HeadScore run_head(Head& head, std::span<const float> states, std::span<const int64_t> targets, double scale,
                   std::span<const float> teacher) {
  const int64_t vocabulary = head.projection->shape[0], width = head.projection->shape[1];
  const auto all = static_cast<int64_t>(targets.size());
  const int64_t step = std::max<int64_t>(1, std::min(all, kLogitFloats / vocabulary));
  const int64_t taken = all > 0 ? static_cast<int64_t>(states.size()) / all : width;  // by the form
  const int64_t teacher_width = head.teacher_gives_logits ? vocabulary : width;
  std::vector<float> y(cells(step, width)), logits(cells(step, vocabulary));
  std::vector<float> taught(head.teacher >= 0 ? cells(step, vocabulary) : 0);
  HeadScore total;
  for (int64_t first = 0; first < all; first += step) {
    const int64_t rows = std::min(step, all - first);
    head.form->forward(states.data() + first * taken, rows, y.data());
    multiply_transposed(y.data(), head.projection->value.data(), logits.data(), rows, vocabulary, width,
                        Into::Set);
    add_bias(head, logits.data(), rows);
    if (head.teacher >= 0) {
      teach(head, teacher.data() + first * teacher_width, rows, taught.data());
      total.add(divergence(logits.data(), rows, vocabulary, taught, scale));
    } else {
      total.add(cross_entropy(logits.data(), rows, vocabulary,
                              targets.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)), scale));
    }
    if (scale == 0) continue;
    add_gradients(head, logits.data(), y.data(), rows);
    multiply(logits.data(), head.projection->value.data(), y.data(), rows, width, vocabulary, Into::Set);
    head.form->backward(y.data(), rows);
  }
  return total;
}

}  // namespace quern::calibrate::train
