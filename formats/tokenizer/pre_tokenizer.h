// What cuts the normalized text into the pieces that a model encodes one by one.
#pragma once

#include <memory>
#include <vector>

#include "formats/tokenizer/pieces.h"

namespace quern::tokenizer {

struct ByteLevelOptions {
  bool add_prefix_space = true;
  bool use_regex = true;
  // Leaves the bytes as they are, for a model that reads them (Bpe::encode_bytes).
  bool keep_bytes = false;
};

// GPT-2's: cuts by its pattern and spells the bytes in the byte-level alphabet.
class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  explicit ByteLevelPreTokenizer(ByteLevelOptions options) : options_(options) {}
  void apply(Pieces& pieces) const override;
  void keep_bytes() { options_.keep_bytes = true; }

 private:
  ByteLevelOptions options_;
};

}  // namespace quern::tokenizer
