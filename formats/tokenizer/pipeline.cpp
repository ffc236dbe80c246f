#include "formats/tokenizer/pipeline.h"

#include <algorithm>

#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

constexpr size_t kMaxText = (size_t{1} << 31) - 1;

// Real normalizers make a few times as much of a text at most.
size_t max_normalized(size_t size) {
  return std::max(size_t{1} << 20, 32 * size);
}

}  // namespace

std::unique_ptr<ModelScratch> Pipeline::take_scratch() const {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<ModelScratch> scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
  }
  return model->make_scratch();
}

void Pipeline::give_scratch(std::unique_ptr<ModelScratch> scratch) const {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

void Pipeline::use_byte_model() {
  const auto* bpe = dynamic_cast<const Bpe*>(model.get());
  if (bpe != nullptr && bpe->reads_bytes() && pre_tokenizer && pre_tokenizer->keep_bytes()) byte_model = bpe;
}

std::vector<int64_t> Pipeline::encode(std::string_view text, EncodeOptions options) const {
  if (text.size() > kMaxText) {
    throw_error(ErrorCode::InvalidArgument, "a text of ", text.size(),
                " bytes is too long to tokenize at once; at most ", kMaxText);
  }
  std::string repaired;
  if (!normalizes_raw_bytes && !is_valid_utf8(text)) {
    repaired = to_valid_utf8(text);
    text = repaired;
  }
  std::vector<int64_t> ids;
  std::unique_ptr<ModelScratch> scratch = take_scratch();
  for (const AddedVocabulary::Section& section : added.split_raw(text)) {
    if (section.id != kNoId) {
      ids.push_back(section.id);
    } else {
      encode_raw_section(text.substr(section.begin, section.end - section.begin), section.begin == 0,
                         *scratch, ids);
    }
  }
  give_scratch(std::move(scratch));
  if (options.add_special_tokens) post_processor.apply(ids);
  return ids;
}

void Pipeline::encode_raw_section(std::string_view text, bool at_start, ModelScratch& scratch,
                                  std::vector<int64_t>& ids) const {
  size_t head = utf8_length(text.front());
  std::optional<NormalizedText> normalized;
  if (normalizer) {
    normalized.emplace(text, max_normalized(text.size()));
    normalizer->apply(*normalized);
    text = normalized->text;
    head = normalized->head;
  }
  if (!at_start) head = 0;
  for (const AddedVocabulary::Section& section : added.split_normalized(text)) {
    if (section.id != kNoId) {
      ids.push_back(section.id);
    } else {
      encode_section(text.substr(section.begin, section.end - section.begin),
                     head - std::min(head, section.begin), scratch, ids);
    }
  }
}

void Pipeline::encode_section(std::string_view text, size_t head, ModelScratch& scratch,
                              std::vector<int64_t>& ids) const {
  Pieces pieces(text, std::min(head, text.size()));
  if (pre_tokenizer) pre_tokenizer->apply(pieces);
  for (const Pieces::Piece& piece : pieces.list()) {
    if (byte_model != nullptr) {
      byte_model->encode_bytes(pieces.text(piece), scratch, ids);
    } else {
      model->encode(pieces.text(piece), scratch, ids);
    }
  }
}

bool Pipeline::decoder_text(int64_t id, DecodeOptions options, std::string_view& text) const {
  if (const AddedToken* token = added.find(id)) {
    text = added.decoder_text(*token);
    // By its text: `tokenizers` shows a special token that its normalizer respells.
    if (options.skip_special_tokens && added.is_special(text)) return false;
    if (decoder_spellings.empty()) return true;
  }
  if (id < 0 || !model->vocabulary().has(static_cast<uint64_t>(id))) return false;
  text = decoder_spellings.empty() ? model->vocabulary().text(static_cast<uint32_t>(id))
                                   : std::string_view(decoder_spellings[static_cast<size_t>(id)]);
  return true;
}

int64_t Pipeline::vocab_size() const {
  return std::max(static_cast<int64_t>(model->vocabulary().id_limit()), added.id_limit());
}

}  // namespace quern::tokenizer
