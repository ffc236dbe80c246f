// What rewrites a text before it is cut into pieces.
#pragma once

#include <string>

namespace quern::tokenizer {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` is valid UTF-8 and stays so.
  virtual void apply(std::string& text) const = 0;
};

}  // namespace quern::tokenizer
