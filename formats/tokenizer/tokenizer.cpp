#include "formats/tokenizer/tokenizer.h"

#include <algorithm>

#include "formats/file/mapped_file.h"
#include "formats/tokenizer/pipeline.h"
#include "formats/tokenizer/tokenizer_file.h"
#include "ir/error.h"

namespace quern::tokenizer {

Tokenizer::Tokenizer(std::shared_ptr<const Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  return with_context("reading '" + path.string() + "'", [&] {
    const auto mapped = MappedFile::open(path);
    const auto bytes = mapped->bytes();
    TokenizerFile file = unpack_tokenizer({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    read_config_beside(path, file);
    return Tokenizer(load_tokenizer(file));
  });
}

Tokenizer Tokenizer::from_bytes(std::string_view bytes) {
  return Tokenizer(load_tokenizer(unpack_tokenizer(bytes)));
}

Tokenizer Tokenizer::from_json(std::string_view json) {
  return Tokenizer(load_tokenizer({.form = FileForm::Json, .content = json, .options = {}}));
}

Tokenizer Tokenizer::from_sentencepiece(std::string_view bytes, SpecialTokenOptions options) {
  TokenizerFile file{.form = FileForm::SentencePiece, .content = bytes, .options = {}};
  file.options.special = options;
  return Tokenizer(load_tokenizer(file));
}

Tokenizer Tokenizer::from_tiktoken(std::string_view text, const TiktokenOptions& options) {
  return Tokenizer(load_tokenizer({.form = FileForm::Tiktoken, .content = text, .options = options}));
}

Tokenizer Tokenizer::from_llama2c(std::string_view bytes, SpecialTokenOptions options) {
  TokenizerFile file{.form = FileForm::Llama2c, .content = bytes, .options = {}};
  file.options.special = options;
  return Tokenizer(load_tokenizer(file));
}

const std::string& Tokenizer::to_bytes() const {
  return pipeline_->source;
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  return pipeline_->encode(text, options);
}

std::string Tokenizer::decode(std::span<const int64_t> ids, DecodeOptions options) const {
  DecodeStream stream(pipeline_->decoder, false);
  std::string text;
  std::string_view token;
  for (const int64_t id : ids) {
    if (pipeline_->decoder_text(id, options, token)) text += stream.push(token);
  }
  text += stream.finish();
  return options.clean_up_spaces ? clean_up_spaces(std::move(text)) : text;
}

std::optional<std::string> Tokenizer::token_of(int64_t id) const {
  if (const AddedToken* token = pipeline_->added.find(id)) return token->content;
  const Vocabulary& vocabulary = pipeline_->model->vocabulary();
  if (id < 0 || !vocabulary.has(static_cast<uint64_t>(id))) return std::nullopt;
  return std::string(vocabulary.text(static_cast<uint32_t>(id)));
}

std::optional<int64_t> Tokenizer::id_of(std::string_view token) const {
  if (const AddedToken* added = pipeline_->added.find(token)) return added->id;
  const uint32_t id = pipeline_->model->vocabulary().find(token);
  if (id == kNoId) return std::nullopt;
  return id;
}

int64_t Tokenizer::vocab_size() const {
  return pipeline_->vocab_size();
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const {
  return pipeline_->added.tokens();
}

bool Tokenizer::is_special(int64_t id) const {
  return pipeline_->added.is_special(id);
}

std::vector<int64_t> Tokenizer::opening() const {
  constexpr int64_t kText = -1;
  std::vector<int64_t> ids = {kText};
  pipeline_->post_processor.apply(ids);
  const auto text = std::find(ids.begin(), ids.end(), kText);
  if (text == ids.end()) return {};
  ids.erase(text, ids.end());
  return ids;
}

std::optional<int64_t> Tokenizer::bos_hint() const {
  return pipeline_->bos_hint;
}

const std::vector<int64_t>& Tokenizer::eos_hints() const {
  return pipeline_->eos_hints;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, DecodeOptions options)
    : pipeline_(tokenizer.pipeline_),
      options_(options),
      stream_(std::make_unique<DecodeStream>(pipeline_->decoder, true)) {}

StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int64_t id) {
  std::string_view token;
  if (!pipeline_->decoder_text(id, options_, token)) return {};
  return stream_->push(token);
}

std::string StreamDecoder::finish() {
  std::string rest = stream_->finish();
  stream_ = std::make_unique<DecodeStream>(pipeline_->decoder, true);
  return rest;
}

}  // namespace quern::tokenizer
