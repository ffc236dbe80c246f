#include "formats/tokenizer/tokenizer.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "formats/tokenizer/pipeline.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in || std::filesystem::is_directory(path)) {
    throw_error(ErrorCode::Io, "can't read '", path.string(), "': ", std::strerror(errno));
  }
  return bytes;
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  return with_context("reading '" + path.string() + "'", [&] { return from_bytes(read_file(path)); });
}

Tokenizer Tokenizer::from_json(std::string_view json) {
  return Tokenizer(load_tokenizer_json(json));
}

Tokenizer Tokenizer::from_bytes(std::string_view bytes) {
  return from_json(bytes);
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
