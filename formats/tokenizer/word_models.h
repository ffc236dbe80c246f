// Models that look whole words up.
#pragma once

#include <string>

#include "formats/tokenizer/model.h"

namespace quern::tokenizer {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";
  size_t max_input_chars_per_word = 100;
};

// BERT's (Schuster and Nakajima 2012): the longest token that a word begins with, and so on; unknown as a
// whole where that fails.
class WordPiece : public Model {
 public:
  WordPiece(Vocabulary vocabulary, WordPieceOptions options);
  std::unique_ptr<ModelScratch> make_scratch() const override;
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  struct Scratch;
  bool add_pieces(std::string_view piece, Scratch& scratch, std::vector<int64_t>& ids) const;

  Vocabulary vocabulary_;
  WordPieceOptions options_;
  uint32_t unk_id_;
  size_t longest_ = 0;  // token, in bytes
};

// A word is a token or unknown.
class WordLevel : public Model {
 public:
  WordLevel(Vocabulary vocabulary, std::string unk_token);
  std::unique_ptr<ModelScratch> make_scratch() const override { return std::make_unique<ModelScratch>(); }
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::string unk_token_;
  uint32_t unk_id_;
};

}  // namespace quern::tokenizer
