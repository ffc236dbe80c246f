// What every tokenization model does: a piece of text in, ids out.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "formats/tokenizer/vocabulary.h"

namespace quern::tokenizer {

// Working memory of one encode() at a time; may remember pieces between calls.
struct ModelScratch {
  virtual ~ModelScratch() = default;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual std::unique_ptr<ModelScratch> make_scratch() const = 0;
  // Appends the ids of `piece` (valid UTF-8, not empty). Throws Error{BadData} if it can't be expressed.
  virtual void encode(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

}  // namespace quern::tokenizer
