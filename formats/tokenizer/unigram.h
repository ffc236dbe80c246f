// The unigram language model (Kudo 2018, https://arxiv.org/abs/1804.10959), as Hugging Face `tokenizers` does
// it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/tokenizer/byte_trie.h"
#include "formats/tokenizer/model.h"

namespace quern::tokenizer {

struct UnigramOptions {
  std::optional<size_t> unk_id;
  bool byte_fallback = false;
};

class Unigram : public Model {
 public:
  // The tokens, whose ids count from 0, and their log-probabilities. Throws Error{InvalidModel} for an unk_id
  // beyond them or a score that is not finite.
  Unigram(const std::vector<std::pair<std::string, double>>& pieces, UnigramOptions options);

  std::unique_ptr<ModelScratch> make_scratch() const override;
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  struct Scratch;
  void find_best_path(std::string_view piece, Scratch& scratch) const;
  void add_part(std::string_view part, std::vector<int64_t>& ids) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  ByteTrie trie_;
  UnigramOptions options_;
  double unk_score_ = 0.0;
  std::array<uint32_t, 256> byte_ids_;  // of <0xNN>
};

}  // namespace quern::tokenizer
