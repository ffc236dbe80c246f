// What comparing two models needs of each.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace quern::calibrate {

// A model that gives logits for token ids. Not thread-safe.
class ScoredModel {
 public:
  enum class Kind {
    NextToken,   // a row of logits per position, over the vocabulary
    Classifier,  // one row of logits, over the classes
  };
  virtual ~ScoredModel() = default;

  virtual Kind kind() const = 0;
  // Elements of a row of logits.
  virtual int64_t width() const = 0;
  // Ids must lie below this; 0: not known.
  virtual int64_t vocabulary() const = 0;
  // The longest sequence of ids it takes; 0: no limit is known.
  virtual int64_t context() const = 0;

  // The sequences that start() will be given next, in this order, for models that are faster with several at
  // once. They must stay as they are until start() was given the last, or the next call.
  virtual void expect(std::span<const std::span<const int64_t>> sequences) { static_cast<void>(sequences); }

  // Begins with a sequence that has nothing to do with what was before. Positions below `first` will not be
  // asked for. Throws Error{BadData} where it is too long, or an id lies outside the vocabulary.
  virtual void start(std::span<const int64_t> ids, int64_t first = 0) = 0;
  // The logits of positions first .. first + count - 1 (of a classifier: first 0, count 1), each width()
  // floats. Calls go upwards and leave nothing out from start()'s `first` on. Valid until the next call.
  virtual std::span<const float* const> logits(int64_t first, int64_t count) = 0;
};

}  // namespace quern::calibrate
