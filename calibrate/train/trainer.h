// Trains heads on the hidden states that the runtime computes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calibrate/train/heads.h"
#include "runtime/decoder/session.h"

namespace quern::calibrate::train {

using Windows = std::vector<std::vector<int64_t>>;  // token ids, each window a text of its own to the model

// Documents cut into windows of `length` tokens; what is left at a document's end is a shorter one, if it has
// `least` tokens.
Windows cut(std::span<const std::vector<int64_t>> documents, int64_t length, int64_t least = 16);

struct TrainOptions {
  int64_t epochs = 2;
  int64_t batch = 8;  // windows of a step
  double rate = 1e-3;
  int64_t warm_up = 40;  // steps
  AdamWOptions optimizer;
  uint64_t seed = 0;         // of the order of windows
  int64_t validations = 10;  // in all, spread over the training; each shows how the heads do
  // Where everything that is needed to go on is left after each validation, and taken up from if `resume` is
  // set and the file is there; empty: nowhere. Settings and data must be the same: Error{InvalidArgument}.
  std::filesystem::path checkpoint;
  bool resume = false;
  std::string settings;  // of the caller, that a checkpoint must agree with
};

struct Validation {
  int64_t step = 0;
  std::vector<HeadScore> train;       // since the last one, by head
  std::vector<HeadScore> validation;  // by head
};

struct TrainHooks {
  std::function<void(int64_t step, int64_t steps)> progress = {};  // may throw to cancel
  std::function<void(const Validation&)> validated = {};
};

// Where heads that are trained get hidden states from, and what they are to name.
class RowSource {
 public:
  using WindowList = std::span<const std::vector<int64_t>* const>;
  virtual ~RowSource() = default;
  virtual void compute(WindowList windows) = 0;
  // Of what compute() was given last, row by row. Head::source and Head::teacher number them.
  virtual std::span<const float> states(int source) const = 0;
  // A target for each of the rows; -1: none.
  virtual std::vector<int64_t> targets(WindowList windows, int64_t ahead) const = 0;
};

// The rows of an entry's outputs for windows of tokens, [tokens of all windows, width] each. The target of a
// row is the token that comes `ahead` behind its own, as far as its window goes.
class StateSource final : public RowSource {
 public:
  // `outputs`: indices of the entry's outputs, Head::source numbers them.
  StateSource(runtime::Session& session, int entry, std::vector<int> outputs);
  void compute(WindowList windows) override;
  std::span<const float> states(int source) const override { return states_[static_cast<size_t>(source)]; }
  std::vector<int64_t> targets(WindowList windows, int64_t ahead) const override;

 private:
  runtime::Session& session_;
  int entry_;
  std::vector<int> outputs_;
  std::vector<std::vector<float>> states_;
};

// Each head is left as it was when its loss on the validation windows was least. The same data and options
// give the same heads on the same machine, interrupted or not. Returns the last scores of those heads. Throws
// Error{InvalidArgument} for no windows, Error{Io}, Error{BadData} for a checkpoint that is none.
std::vector<HeadScore> train_heads(std::span<Head> heads, RowSource& source, const Windows& training,
                                   const Windows& validation, const TrainOptions& options,
                                   const TrainHooks& hooks = {});

// The heads' scores on windows.
std::vector<HeadScore> score_heads(std::span<Head> heads, RowSource& source, const Windows& windows,
                                   int64_t batch = 8);

}  // namespace quern::calibrate::train
