// SentencePiece's models (Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226), exact to the library's
// ids.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer/added_vocabulary.h"
#include "formats/tokenizer/byte_trie.h"
#include "formats/tokenizer/charsmap.h"
#include "formats/tokenizer/decoder.h"
#include "formats/tokenizer/model.h"
#include "formats/tokenizer/normalizer.h"
#include "formats/tokenizer/sentencepiece.pb.h"

namespace quern::tokenizer {

// SentencePiece's mark of a space.
constexpr std::string_view kSpaceMark = "\u2581";

// The pieces of a model file, checked.
struct SentencePieces {
  using Type = sentencepiece::Model::Piece::Type;
  // Throws Error{InvalidModel}.
  explicit SentencePieces(const sentencepiece::Model& model);

  // Bytes of the user-defined symbol that `text` begins with, or else of its first character.
  size_t symbol_length(std::string_view text, bool& user_defined) const;

  Vocabulary all;
  Vocabulary words;  // those that a text may be made of: normal, user-defined and unused
  std::vector<float> scores;
  std::vector<Type> types;
  uint32_t unk_id = kNoId;
  bool byte_fallback = false;
  std::array<uint32_t, 256> byte_ids;
  StringMatcher user_defined;
};

// Makes the model of the type that the file names.
std::unique_ptr<Model> make_sentencepiece_model(SentencePieces pieces,
                                                sentencepiece::TrainerSpec::ModelType type);

// The rules of `spec`, spaces, and user-defined symbols, which stay as they are. Takes any bytes: each that
// is no part of a character becomes U+FFFD.
std::unique_ptr<Normalizer> make_sentencepiece_normalizer(const sentencepiece::NormalizerSpec& spec,
                                                          const SentencePieces& pieces,
                                                          bool spaces_as_suffix);

// Decodes pieces as SentencePieceProcessor::Decode does. A token is one letter for its kind and its text:
// c(ontrol), u(nknown), b(yte, one byte), n(ormal).
struct SentencePieceDecoding {
  std::string unk_surface;
  bool drops_first_space = true;       // the one at the beginning of the text
  bool drops_all_first_spaces = true;  // or all of them
};
StageFactory sentencepiece_stage(SentencePieceDecoding decoding);

}  // namespace quern::tokenizer
