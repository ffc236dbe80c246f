// A tokenizer's parts, put together: added tokens -> normalizer -> pre-tokenizer -> model -> post-processor,
// and the decoder.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "formats/tokenizer/added_vocabulary.h"
#include "formats/tokenizer/bpe.h"
#include "formats/tokenizer/decoder.h"
#include "formats/tokenizer/model.h"
#include "formats/tokenizer/normalizer.h"
#include "formats/tokenizer/post_processor.h"
#include "formats/tokenizer/pre_tokenizer.h"
#include "formats/tokenizer/tokenizer.h"

namespace quern::tokenizer {

struct Pipeline {
  std::string source;  // what Tokenizer::to_bytes() returns
  AddedVocabulary added;
  std::unique_ptr<Normalizer> normalizer;       // null: none
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: the text is one piece
  std::unique_ptr<Model> model;
  const Bpe* byte_model = nullptr;  // set where the pieces are bytes for Bpe::encode_bytes()
  PostProcessor post_processor;
  std::vector<StageFactory> decoder;
  // What the decoder gets of each id; empty: the tokens themselves.
  std::vector<std::string> decoder_spellings;
  // The normalizer wants the bytes as they are, and mends what is malformed.
  bool normalizes_raw_bytes = false;

  std::optional<int64_t> bos_hint;
  std::vector<int64_t> eos_hints;

  // Once the parts are there: lets a byte-level BPE read the bytes without writing them out.
  void use_byte_model();

  std::vector<int64_t> encode(std::string_view text, EncodeOptions options) const;
  // False if `id` names no token.
  bool decoder_text(int64_t id, DecodeOptions options, std::string_view& text) const;
  int64_t vocab_size() const;

 private:
  void encode_raw_section(std::string_view text, bool at_start, ModelScratch& scratch,
                          std::vector<int64_t>& ids) const;
  void encode_section(std::string_view text, size_t head, ModelScratch& scratch,
                      std::vector<int64_t>& ids) const;
  std::unique_ptr<ModelScratch> take_scratch() const;
  void give_scratch(std::unique_ptr<ModelScratch> scratch) const;

  // Scratch memory that no encode() uses at the moment, with what it remembers.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<ModelScratch>> idle_;
};

// Each throws as Tokenizer::from_bytes() and leaves `source` empty.
std::shared_ptr<Pipeline> load_tokenizer_json(std::string_view json);
std::shared_ptr<Pipeline> load_sentencepiece(std::string_view bytes, const SpecialTokenOptions& options);
std::shared_ptr<Pipeline> load_tiktoken(std::string_view text, const TiktokenOptions& options);
std::shared_ptr<Pipeline> load_llama2c(std::string_view bytes, const SpecialTokenOptions& options);

}  // namespace quern::tokenizer
