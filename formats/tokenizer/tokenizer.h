// Text to token ids and back, by the tokenizers of published models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quern::tokenizer {

struct Pipeline;
class DecodeStream;

struct EncodeOptions {
  // Lets the tokenizer add what its model expects around a text, such as <s> or [CLS] ... [SEP].
  bool add_special_tokens = true;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
  // Takes the spaces before punctuation and short forms of English away, as transformers' option
  // clean_up_tokenization_spaces does. For decode() alone; a StreamDecoder does not look at it.
  bool clean_up_spaces = false;
};

// A token that is found in the text before anything else looks at it.
struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character is beside it
  bool lstrip = false;       // takes the whitespace on its left along
  bool rstrip = false;
  bool normalized = true;  // searched in the normalized text, not in the raw one
  bool special = false;    // left out by DecodeOptions::skip_special_tokens
};

// What files other than a tokenizer.json don't say. tokenizer_config.json beside them may: from_file() reads
// it.
struct SpecialTokenOptions {
  // Whether encode() puts the beginning-of-text token first and the end-of-text token last.
  bool add_bos = false;
  bool add_eos = false;
};

struct TiktokenOptions {
  // The regular expression that cuts texts, in Oniguruma's syntax. Empty: as the number of ranks tells, which
  // is known for OpenAI's files and for those of Llama 3 and Qwen.
  std::string pattern;
  // In addition to the ones known by the number of ranks.
  std::vector<AddedToken> special_tokens;
  SpecialTokenOptions special;
};

// An immutable tokenizer; copies are cheap and share it. All const functions may run in many threads at once.
class Tokenizer {
 public:
  // Reads a tokenizer file: a tokenizer.json, a SentencePiece .model, a tiktoken file, or llama2.c's
  // tokenizer.bin, told apart by their content. Throws Error{Io} if it can't be read, else as from_bytes().
  static Tokenizer from_file(const std::filesystem::path& path);
  // The content of a tokenizer file, or what to_bytes() returned. Throws Error{Corrupt} for a file that is
  // none of these or is damaged, Error{InvalidModel} if it contradicts itself, Error{Unsupported} for a part
  // that quern lacks.
  static Tokenizer from_bytes(std::string_view bytes);
  // The same for content of a known form.
  static Tokenizer from_json(std::string_view json);
  static Tokenizer from_sentencepiece(std::string_view bytes, SpecialTokenOptions options = {});
  static Tokenizer from_tiktoken(std::string_view text, const TiktokenOptions& options = {});
  static Tokenizer from_llama2c(std::string_view bytes, SpecialTokenOptions options = {.add_bos = true});
  // What from_bytes() makes this tokenizer from; for a tokenizer.json its own bytes, unchanged.
  const std::string& to_bytes() const;

  // The ids that encode() puts before every text, such as that of <s>; often none.
  std::vector<int64_t> opening() const;

  // The ids of `text`. Invalid UTF-8 in it is read as U+FFFD. Throws Error{InvalidArgument} for a text of 2
  // GiB or more, Error{BadData} for a text that the vocabulary can't express (no unknown token).
  std::vector<int64_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // The text of `ids`; always valid UTF-8. Ids that name no token are passed over, as models with a padded
  // vocabulary emit them.
  std::string decode(std::span<const int64_t> ids, DecodeOptions options = {}) const;

  // The token as the vocabulary spells it (byte-level tokens in their printable alphabet).
  std::optional<std::string> token_of(int64_t id) const;
  std::optional<int64_t> id_of(std::string_view token) const;

  // Largest id + 1, added tokens included: the fewest rows that a model's embedding may have.
  int64_t vocab_size() const;
  const std::vector<AddedToken>& added_tokens() const;
  bool is_special(int64_t id) const;

  // What the file suggests; the model's own configuration knows better. The id that encode() puts first, and
  // the ids that end a text.
  std::optional<int64_t> bos_hint() const;
  const std::vector<int64_t>& eos_hints() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const Pipeline> pipeline);
  std::shared_ptr<const Pipeline> pipeline_;
};

// Decodes ids as they come. The pieces, put together, are what decode() says of all ids (where a
// byte-fallback sequence is malformed the replacement characters may differ), and none ends within a
// character.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, DecodeOptions options = {});
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  // The text that `id` completes; often empty within a character of several tokens.
  std::string push(int64_t id);
  // The rest: U+FFFD for a character that never was completed. The decoder then starts afresh.
  std::string finish();

 private:
  std::shared_ptr<const Pipeline> pipeline_;
  DecodeOptions options_;
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace quern::tokenizer
