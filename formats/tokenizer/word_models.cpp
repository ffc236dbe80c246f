#include "formats/tokenizer/word_models.h"

#include <algorithm>

#include "formats/tokenizer/piece_cache.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

// The unknown token's id, wanted for `piece`.
uint32_t need_unknown(uint32_t unk_id, const std::string& unk_token, std::string_view piece) {
  if (unk_id == kNoId) {
    throw_error(ErrorCode::BadData, "tokenizer: '", piece.substr(0, 100), "' needs the unknown token '",
                unk_token, "', which the vocabulary lacks");
  }
  return unk_id;
}

size_t longest_token(const Vocabulary& vocabulary) {
  size_t longest = 0;
  for (uint32_t id = 0; id < vocabulary.id_limit(); ++id) {
    if (vocabulary.has(id)) longest = std::max(longest, vocabulary.text(id).size());
  }
  return longest;
}

}  // namespace

struct WordPiece::Scratch : ModelScratch {
  PieceCache cache;
  std::string candidate;
};

WordPiece::WordPiece(Vocabulary vocabulary, WordPieceOptions options)
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      unk_id_(vocabulary_.find(options_.unk_token)),
      longest_(longest_token(vocabulary_)) {}

std::unique_ptr<ModelScratch> WordPiece::make_scratch() const {
  return std::make_unique<Scratch>();
}

void WordPiece::encode(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const {
  auto& own = static_cast<Scratch&>(scratch);
  if (own.cache.find(piece, ids)) return;
  const size_t before = ids.size();
  if (count_characters(piece) > options_.max_input_chars_per_word || !add_pieces(piece, own, ids)) {
    ids.resize(before);
    ids.push_back(need_unknown(unk_id_, options_.unk_token, piece));
  }
  own.cache.keep(piece, ids.data() + before, ids.size() - before);
}

bool WordPiece::add_pieces(std::string_view piece, Scratch& scratch, std::vector<int64_t>& ids) const {
  for (size_t begin = 0; begin < piece.size();) {
    scratch.candidate = begin > 0 ? options_.continuing_subword_prefix : "";
    const size_t prefix = scratch.candidate.size();
    // No token is longer than the longest.
    size_t length = std::min(piece.size() - begin, longest_ > prefix ? longest_ - prefix : 0);
    while (begin + length < piece.size() &&
           (static_cast<unsigned char>(piece[begin + length]) & 0xC0) == 0x80) {
      --length;
    }
    scratch.candidate += piece.substr(begin, length);
    uint32_t id = kNoId;
    while (scratch.candidate.size() > prefix) {
      id = vocabulary_.find(scratch.candidate);
      if (id != kNoId) break;
      do scratch.candidate.pop_back();
      while (scratch.candidate.size() > prefix &&
             (static_cast<unsigned char>(piece[begin + scratch.candidate.size() - prefix]) & 0xC0) == 0x80);
    }
    if (id == kNoId) return false;
    ids.push_back(id);
    begin += scratch.candidate.size() - prefix;
  }
  return true;
}

WordLevel::WordLevel(Vocabulary vocabulary, std::string unk_token)
    : vocabulary_(std::move(vocabulary)),
      unk_token_(std::move(unk_token)),
      unk_id_(vocabulary_.find(unk_token_)) {}

void WordLevel::encode(std::string_view piece, ModelScratch&, std::vector<int64_t>& ids) const {
  const uint32_t id = vocabulary_.find(piece);
  ids.push_back(id != kNoId ? id : need_unknown(unk_id_, unk_token_, piece));
}

}  // namespace quern::tokenizer
