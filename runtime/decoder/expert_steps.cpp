#include "runtime/decoder/expert_steps.h"

#include <algorithm>
#include <cmath>

namespace quern::runtime {

RouteStep::RouteStep(const Options& options, Operand logits, Operand routing)
    : options_(options), logits_(logits), routing_(routing) {
  kind = "route";
  reads = {logits};
  writes = {routing};
}

void RouteStep::run_row(const Pass& pass, int64_t row) const {
  const float* logits = pass.view(logits_)[row];
  float* weights = pass.view(routing_)[row];
  const int64_t experts = routing_.width;
  const float most = *std::max_element(logits, logits + experts);
  float all = 1;
  if (options_.softmax) {
    all = 0;
    for (int64_t e = 0; e < experts; ++e) all += std::exp(logits[e] - most);
  }
  const auto score = [&](int64_t e) {
    return options_.softmax ? std::exp(logits[e] - most) / all : 1.0F / (1.0F + std::exp(-logits[e]));
  };
  const auto rank = [&](int64_t e) {
    return options_.bias != nullptr ? score(e) + options_.bias[e] : logits[e];
  };
  std::fill_n(weights, experts, 0.0F);
  // Chosen ones are marked by 1 until their weights are known.
  float sum = 0;
  for (int64_t i = 0; i < options_.per_token; ++i) {
    int64_t best = -1;
    float best_rank = 0;
    for (int64_t e = 0; e < experts; ++e) {
      if (weights[e] != 0) continue;
      const float own = rank(e);
      // A NaN is no greater than anything, but somebody has to serve the token.
      if (best < 0 || own > best_rank) {
        best = e;
        best_rank = own;
      }
    }
    weights[best] = 1;
    sum += score(best);
  }
  const float factor = options_.normalize ? options_.scale / sum : options_.scale;
  for (int64_t e = 0; e < experts; ++e) {
    if (weights[e] != 0) weights[e] = score(e) * factor;
  }
}

DispatchStep::DispatchStep(size_t first, int64_t per_token, Operand routing)
    : first_(first), per_token_(per_token), routing_(routing) {
  kind = "dispatch";
  row_local = false;
  reads = {routing};
}

void DispatchStep::run(const Pass& pass, int thread) const {
  if (thread != 0) return;
  const RowView routing = pass.view(routing_);
  const int64_t rows = pass.count(space);
  int32_t* list = pass.experts[first_].rows;
  for (int64_t e = 0; e < routing_.width; ++e) {
    ExpertRows& expert = pass.experts[first_ + static_cast<size_t>(e)];
    expert = {list, 0};
    for (int64_t row = 0; row < rows; ++row) {
      if (routing[row][e] != 0) expert.rows[expert.count++] = static_cast<int32_t>(row);
    }
    list += expert.count;
  }
}

DispatchedStep::DispatchedStep() {
  kind = "dispatch";
  row_local = false;
}

ZeroStep::ZeroStep(Operand y) : y_(y) {
  kind = "zero";
  writes = {y};
}

void ZeroStep::run_row(const Pass& pass, int64_t row) const {
  std::fill_n(pass.view(y_)[row], y_.width, 0.0F);
}

ExpertRowsStep::ExpertRowsStep(Operand x, Operand y) : x_(x), y_(y) {
  kind = "expert_rows";
  row_local = false;
  reads = {x};
  writes = {y};
}

void ExpertRowsStep::run(const Pass& pass, int thread) const {
  const ExpertRows& expert = pass.experts[space.expert_index()];
  const cpu::Range range = cpu::part_of(expert.count, thread, pass.threads);
  const RowView x = pass.view(x_), y = pass.view(y_);
  for (int64_t i = range.begin; i < range.end; ++i) std::copy_n(x[expert.rows[i]], y_.width, y[i]);
}

AccumulateStep::AccumulateStep(int64_t expert, Operand y, Operand routing, Operand sums)
    : expert_(expert), y_(y), routing_(routing), sums_(sums) {
  kind = "accumulate";
  row_local = false;
  reads = {y, routing, sums};
  writes = {sums};
}

void AccumulateStep::run(const Pass& pass, int thread) const {
  const ExpertRows& expert = pass.experts[space.expert_index()];
  const cpu::Range range = cpu::part_of(expert.count, thread, pass.threads);
  const RowView y = pass.view(y_), routing = pass.view(routing_), sums = pass.view(sums_);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = expert.rows[i];
    const float weight = routing[row][expert_];
    const float* from = y[i];
    float* to = sums[row];
    for (int64_t c = 0; c < sums_.width; ++c) to[c] += weight * from[c];
  }
}

}  // namespace quern::runtime
