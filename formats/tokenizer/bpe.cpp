#include "formats/tokenizer/bpe.h"

#include <algorithm>
#include <bit>

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/byte_tokens.h"
#include "formats/tokenizer/piece_cache.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

struct Symbol {
  uint32_t id;
  int32_t previous;
  int32_t next;
  bool merged_away;
};

// A merge that was possible when it was queued.
struct Candidate {
  uint64_t order;  // rank, then position: the lowest goes first
  uint32_t id;
};

// SentencePiece's mark of a space.
constexpr std::string_view kMark = "\u2581";

// Where `text`, from `from` on, has a mark behind another character.
size_t find_mark_behind_word(std::string_view text, size_t from) {
  for (size_t at = text.find(kMark, from); at != std::string_view::npos;
       at = text.find(kMark, at + kMark.size())) {
    if (at > 0 && !text.substr(0, at).ends_with(kMark)) return at;
  }
  return std::string_view::npos;
}

bool later(const Candidate& a, const Candidate& b) {
  return a.order > b.order;
}

}  // namespace

MergeTable::MergeTable(size_t merges) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, 2 * merges));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void MergeTable::add(uint32_t left, uint32_t right, Merge merge) {
  const uint64_t pair = uint64_t{left} << 32 | right;
  size_t at = slot(pair);
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & mask_;
  slots_[at] = {pair, merge};
}

struct Bpe::Scratch : ModelScratch {
  PieceCache cache;
  std::vector<Symbol> symbols;
  std::vector<Candidate> queue;
  std::string spelt;  // a piece in the byte-level alphabet
  std::string decorated;

  void add(uint32_t id) {
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1, false});
  }
};

namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

MergeTable table_of(const Vocabulary& vocabulary, const Merges& merges, size_t prefix) {
  const auto id_in_merge = [&](size_t rank, const std::string& token) {
    const uint32_t id = vocabulary.find(token);
    if (id == kNoId) {
      throw_error(ErrorCode::InvalidModel, "tokenizer: merge ", rank, " ('", merges[rank].first, "' + '",
                  merges[rank].second, "') needs the token '", token, "', which the vocabulary lacks");
    }
    return id;
  };
  MergeTable table(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const uint32_t left_id = id_in_merge(rank, left);
    const uint32_t right_id = id_in_merge(rank, right);
    const uint32_t merged = id_in_merge(rank, left + right.substr(std::min(prefix, right.size())));
    table.add(left_id, right_id, {static_cast<uint32_t>(rank), merged});
  }
  return table;
}

}  // namespace

MergeTable all_merges(const Vocabulary& vocabulary, const std::function<uint32_t(uint32_t)>& rank_of) {
  struct Found {
    uint32_t left;
    uint32_t right;
    uint32_t merged;
  };
  std::vector<Found> found;
  for (uint32_t id = 0; id < vocabulary.id_limit(); ++id) {
    if (!vocabulary.has(id)) continue;
    const std::string_view text = vocabulary.text(id);
    for (size_t cut = 0; cut < text.size();) {
      cut += utf8_length(text[cut]);
      if (cut >= text.size()) break;
      const uint32_t left = vocabulary.find(text.substr(0, cut));
      const uint32_t right = left == kNoId ? kNoId : vocabulary.find(text.substr(cut));
      if (right != kNoId) found.push_back({left, right, id});
    }
  }
  MergeTable table(found.size());
  for (const Found& merge : found) table.add(merge.left, merge.right, {rank_of(merge.merged), merge.merged});
  return table;
}

Bpe::Bpe(Vocabulary vocabulary, const Merges& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      merges_(table_of(vocabulary_, merges, options_.continuing_subword_prefix.size())) {
  prepare();
}

Bpe::Bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), merges_(std::move(merges)) {
  prepare();
}

void Bpe::prepare() {
  if (options_.unk_token) unk_id_ = vocabulary_.find(*options_.unk_token);
  byte_ids_ = find_byte_tokens(vocabulary_);
  for (uint32_t c = 0; c < low_char_ids_.size(); ++c) {
    std::string character;
    append_utf8(character, c);
    low_char_ids_[c] = vocabulary_.find(character);
  }
  splits_at_marks_ = reads_bytes() && !options_.ignore_merges && vocabulary_.find(kMark) != kNoId;
  merges_.for_each_merged([this](uint32_t id) {
    splits_at_marks_ =
        splits_at_marks_ && find_mark_behind_word(vocabulary_.text(id), 0) == std::string_view::npos;
  });
}

std::unique_ptr<ModelScratch> Bpe::make_scratch() const {
  return std::make_unique<Scratch>();
}

void Bpe::encode(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const {
  auto& own = static_cast<Scratch&>(scratch);
  size_t begin = 0;
  while (splits_at_marks_) {
    const size_t end = find_mark_behind_word(piece, begin + 1);
    if (end == std::string_view::npos) break;
    encode_part(piece.substr(begin, end - begin), own, ids);
    begin = end;
  }
  encode_part(piece.substr(begin), own, ids);
}

void Bpe::encode_part(std::string_view piece, Scratch& scratch, std::vector<int64_t>& ids) const {
  if (scratch.cache.find(piece, ids)) return;
  const size_t before = ids.size();
  encode_afresh(piece, scratch, ids);
  scratch.cache.keep(piece, ids.data() + before, ids.size() - before);
}

void Bpe::encode_bytes(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const {
  auto& own = static_cast<Scratch&>(scratch);
  if (own.cache.find(piece, ids)) return;
  const size_t before = ids.size();
  own.spelt.clear();
  append_byte_level(piece, own.spelt);
  encode_afresh(own.spelt, own, ids);
  own.cache.keep(piece, ids.data() + before, ids.size() - before);
}

void Bpe::encode_afresh(std::string_view piece, Scratch& scratch, std::vector<int64_t>& ids) const {
  if (options_.ignore_merges) {
    const uint32_t id = vocabulary_.find(piece);
    if (id != kNoId) {
      ids.push_back(id);
      return;
    }
  }
  start_symbols(piece, scratch);
  merge_symbols(scratch);
  if (scratch.symbols.empty()) return;
  const auto end = static_cast<int32_t>(scratch.symbols.size());
  for (int32_t at = 0; at < end; at = scratch.symbols[static_cast<size_t>(at)].next) {
    ids.push_back(scratch.symbols[static_cast<size_t>(at)].id);
  }
}

uint32_t Bpe::id_of_character(std::string_view character) const {
  if (character.size() <= 2) {
    const char32_t c = code_point_at(character.data());
    if (c < low_char_ids_.size()) return low_char_ids_[c];
  }
  return vocabulary_.find(character);
}

bool Bpe::add_byte_tokens(std::string_view character, Scratch& scratch) const {
  for (const char byte : character) {
    if (byte_ids_[static_cast<unsigned char>(byte)] == kNoId) return false;
  }
  for (const char byte : character) scratch.add(byte_ids_[static_cast<unsigned char>(byte)]);
  return true;
}

void Bpe::start_symbols(std::string_view piece, Scratch& scratch) const {
  scratch.symbols.clear();
  const bool decorates = !options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty();
  bool unknown_pending = false;
  for (size_t at = 0; at < piece.size();) {
    const size_t length = utf8_length(piece[at]);
    std::string_view character = piece.substr(at, length);
    if (decorates) {
      scratch.decorated.clear();
      if (at > 0) scratch.decorated += options_.continuing_subword_prefix;
      scratch.decorated += character;
      if (at + length == piece.size()) scratch.decorated += options_.end_of_word_suffix;
      character = scratch.decorated;
    }
    at += length;
    const uint32_t id = decorates ? vocabulary_.find(character) : id_of_character(character);
    if (id != kNoId) {
      if (unknown_pending) scratch.add(unk_id_);
      unknown_pending = false;
      scratch.add(id);
      continue;
    }
    // As in `tokenizers`, an unknown token that is pending stays so until after the byte tokens.
    if (options_.byte_fallback && add_byte_tokens(character, scratch)) continue;
    if (!options_.unk_token) continue;
    if (unk_id_ == kNoId) {
      throw_error(ErrorCode::BadData, "tokenizer: the character '", character, "' needs the unknown token '",
                  *options_.unk_token, "', which the vocabulary lacks");
    }
    if (unknown_pending && !options_.fuse_unk) scratch.add(unk_id_);
    unknown_pending = true;
  }
  if (unknown_pending) scratch.add(unk_id_);
}

// Merges the pair of lowest rank, leftmost first, until none is left. A queued merge may be out of date; like
// `tokenizers`, it is carried out if the pair that now stands there merges into the same token.
void Bpe::merge_symbols(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  queue.clear();
  const auto enqueue = [&](size_t left, size_t right) {
    const MergeTable::Merge* merge = merges_.find(symbols[left].id, symbols[right].id);
    if (merge == nullptr) return false;
    queue.push_back({uint64_t{merge->rank} << 32 | left, merge->id});
    return true;
  };
  for (size_t at = 0; at + 1 < symbols.size(); ++at) enqueue(at, at + 1);
  std::make_heap(queue.begin(), queue.end(), later);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    const Candidate top = queue.back();
    queue.pop_back();
    const auto at = static_cast<size_t>(top.order & 0xFFFFFFFF);
    Symbol& left = symbols[at];
    if (left.merged_away || static_cast<size_t>(left.next) == symbols.size()) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    const MergeTable::Merge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.merged_away = true;
    const auto next = static_cast<size_t>(left.next);
    if (next < symbols.size()) symbols[next].previous = static_cast<int32_t>(at);
    if (left.previous >= 0 && enqueue(static_cast<size_t>(left.previous), at)) {
      std::push_heap(queue.begin(), queue.end(), later);
    }
    if (next < symbols.size() && enqueue(at, next)) std::push_heap(queue.begin(), queue.end(), later);
  }
}

}  // namespace quern::tokenizer
