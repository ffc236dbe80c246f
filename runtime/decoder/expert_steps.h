// Steps of a mixture of experts: who serves whom, the rows of each expert, and their weighted sum.
#pragma once

#include <cstdint>

#include "runtime/decoder/row_steps.h"

namespace quern::runtime {

// Weights of a token's experts from its logits; zero for those that do not serve it.
class RouteStep final : public RowStep {
 public:
  struct Options {
    int64_t per_token = 1;
    bool softmax = true;          // else a logistic function of each logit
    bool normalize = false;       // the chosen ones' scores add up to one
    float scale = 1;              // of the weights, at last
    const float* bias = nullptr;  // [experts], added to the scores where experts are chosen; null: none
  };
  RouteStep(const Options& options, Operand logits, Operand routing);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  Options options_;
  Operand logits_, routing_;
};

// Lists the rows of each expert of a mixture, one thread alone: nothing is computed here.
class DispatchStep final : public Step {
 public:
  // `first`: the index of expert 0 among the plan's spaces.
  DispatchStep(size_t first, int64_t per_token, Operand routing);
  void run(const Pass& pass, int thread) const override;

 private:
  size_t first_;
  int64_t per_token_;
  Operand routing_;
};

// Behind a dispatch: a barrier before anybody asks how many rows an expert has.
class DispatchedStep final : public Step {
 public:
  DispatchedStep();
  void run(const Pass&, int) const override {}
};

// Sets rows to zero, for sums to come.
class ZeroStep final : public RowStep {
 public:
  explicit ZeroStep(Operand y);
  void run_row(const Pass& pass, int64_t row) const override;

 private:
  Operand y_;
};

// The rows of x that an expert serves, side by side. Its space is the expert's.
class ExpertRowsStep final : public Step {
 public:
  ExpertRowsStep(Operand x, Operand y);
  void run(const Pass& pass, int thread) const override;

 private:
  Operand x_, y_;
};

// Adds an expert's rows, each times its token's weight, to the rows that they came from. Each expert adds to
// a token at most once, and the experts come in the order of the steps: sums do not depend on the other
// tokens.
class AccumulateStep final : public Step {
 public:
  AccumulateStep(int64_t expert, Operand y, Operand routing, Operand sums);
  void run(const Pass& pass, int thread) const override;

 private:
  int64_t expert_;
  Operand y_, routing_, sums_;
};

}  // namespace quern::runtime
