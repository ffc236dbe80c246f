#include "formats/tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <queue>
#include <unordered_map>

#include "formats/tokenizer/byte_tokens.h"
#include "formats/tokenizer/piece_cache.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

using PieceType = sentencepiece::Model::Piece;

// A stretch of a text and its id; kNoId or the unknown id where it has none.
struct Part {
  std::string_view text;
  uint32_t id;
};

// What the models have in common: bytes for unknown characters, or one unknown id for a run of them.
class SentencePieceModel : public Model {
 public:
  explicit SentencePieceModel(SentencePieces pieces) : pieces_(std::move(pieces)) {}
  const Vocabulary& vocabulary() const override { return pieces_.all; }

 protected:
  bool is_unused(uint32_t id) const { return pieces_.types[id] == PieceType::UNUSED; }
  // The id of a text that is a piece, or the unknown id.
  uint32_t word_id(std::string_view text) const {
    const uint32_t id = pieces_.words.find(text);
    return id == kNoId ? pieces_.unk_id : id;
  }
  uint32_t used_word_id(std::string_view text) const {
    const uint32_t id = word_id(text);
    return id != pieces_.unk_id && is_unused(id) ? pieces_.unk_id : id;
  }

  void add_parts(const std::vector<Part>& parts, std::vector<int64_t>& ids) const {
    bool after_unknown = false;
    for (const Part& part : parts) {
      const bool unknown = part.id == pieces_.unk_id;
      if (unknown && pieces_.byte_fallback) {
        append_byte_tokens(part.text, pieces_.byte_ids, ids);
      } else if (!unknown || !after_unknown) {
        ids.push_back(part.id);
      }
      after_unknown = unknown;
    }
  }

  SentencePieces pieces_;
};

class UnigramPieces : public SentencePieceModel {
 public:
  explicit UnigramPieces(SentencePieces pieces) : SentencePieceModel(std::move(pieces)) {
    std::vector<std::pair<std::string_view, uint32_t>> entries;
    float min_score = FLT_MAX;
    for (uint32_t id = 0; id < pieces_.types.size(); ++id) {
      if (pieces_.types[id] == PieceType::NORMAL) min_score = std::min(min_score, pieces_.scores[id]);
      const std::string_view text = pieces_.all.text(id);
      if (pieces_.words.find(text) == id) entries.emplace_back(text, id);
    }
    unk_score_ = min_score - 10.0F;
    trie_ = ByteTrie(std::move(entries));
  }

  std::unique_ptr<ModelScratch> make_scratch() const override { return std::make_unique<Scratch>(); }

  void encode(std::string_view text, ModelScratch& scratch, std::vector<int64_t>& ids) const override {
    auto& own = static_cast<Scratch&>(scratch);
    find_best_path(text, own.best);
    own.parts.clear();
    for (size_t end = text.size(); end > 0; end = own.best[end].begin) {
      const BestEnd& best = own.best[end];
      own.parts.push_back({text.substr(best.begin, end - best.begin), best.id});
    }
    std::reverse(own.parts.begin(), own.parts.end());
    add_parts(own.parts, ids);
  }

 private:
  static constexpr size_t kNowhere = std::string_view::npos;
  // The best path to a position; in single precision, as the library has it, so that ties break alike.
  struct BestEnd {
    uint32_t id = kNoId;
    float score = 0.0F;
    size_t begin = kNowhere;
  };
  struct Scratch : ModelScratch {
    std::vector<BestEnd> best;
    std::vector<Part> parts;
  };

  void find_best_path(std::string_view text, std::vector<BestEnd>& best) const {
    best.assign(text.size() + 1, {});
    size_t frontier = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t character = std::min(utf8_length(text[begin]), text.size() - begin);
      rebase(best, begin, frontier);
      const float so_far = best[begin].score;
      bool known = false;
      const auto offer = [&](size_t length, float score, uint32_t id) {
        frontier = std::max(frontier, begin + length);
        BestEnd& end = best[begin + length];
        const float candidate = score + so_far;
        if (end.begin == kNowhere || candidate > end.score) end = {id, candidate, begin};
      };
      trie_.for_each_prefix(text.substr(begin), [&](size_t length, uint32_t id) {
        if (is_unused(id)) return;
        const bool user_defined = pieces_.types[id] == PieceType::USER_DEFINED;
        // The bonus makes sure that user-defined symbols are chosen.
        offer(length,
              user_defined ? static_cast<float>(0.1 * static_cast<double>(length - 1)) : pieces_.scores[id],
              id);
        known = known || length == character;
      });
      if (!known) offer(character, unk_score_, pieces_.unk_id);
      begin += character;
    }
  }

  // In long texts, keeps the sums small enough for single precision to tell scores apart.
  static void rebase(std::vector<BestEnd>& best, size_t begin, size_t frontier) {
    constexpr float kThreshold = 100000.0F;
    const float offset = best[begin].score;
    if (offset >= -kThreshold && offset <= kThreshold) return;
    for (size_t i = begin; i <= std::max(begin, frontier); ++i) {
      if (i == begin || best[i].begin != kNowhere) best[i].score -= offset;
    }
    best[begin].score = 0.0F;
  }

  ByteTrie trie_;
  float unk_score_ = 0.0F;
};

// Merges the pair whose joint piece has the highest score, leftmost first.
class BpePieces : public SentencePieceModel {
 public:
  explicit BpePieces(SentencePieces pieces) : SentencePieceModel(std::move(pieces)) {
    splits_at_marks_ = pieces_.user_defined.empty() && pieces_.words.find(kSpaceMark) != kNoId;
    for (uint32_t id = 0; id < pieces_.types.size() && splits_at_marks_; ++id) {
      const std::string_view text = pieces_.all.text(id);
      if (pieces_.words.find(text) == id && find_mark_behind_word(text, 0) != std::string_view::npos) {
        splits_at_marks_ = false;
      }
    }
  }

  std::unique_ptr<ModelScratch> make_scratch() const override { return std::make_unique<Scratch>(); }

  void encode(std::string_view text, ModelScratch& scratch, std::vector<int64_t>& ids) const override {
    auto& own = static_cast<Scratch&>(scratch);
    size_t begin = 0;
    // Where no piece has a space mark within, words merge by themselves.
    while (splits_at_marks_) {
      const size_t end = find_mark_behind_word(text, begin + 1);
      if (end == std::string_view::npos) break;
      encode_word(text.substr(begin, end - begin), own, ids);
      begin = end;
    }
    encode_word(text.substr(begin), own, ids);
  }

 private:
  struct Symbol {
    std::string_view text;  // empty once merged into its neighbour
    int64_t previous;
    int64_t next;
    bool fixed;  // user-defined
  };
  struct Merge {
    float score;
    size_t left;
    size_t right;
    size_t size;
  };
  struct Lower {
    bool operator()(const Merge& a, const Merge& b) const {
      return a.score < b.score || (a.score == b.score && a.left > b.left);
    }
  };
  struct Scratch : ModelScratch {
    PieceCache cache;
    std::vector<Symbol> symbols;
    std::vector<Merge> queue;
    std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>> unused_parts;
    std::vector<Part> parts;
  };

  static size_t find_mark_behind_word(std::string_view text, size_t from) {
    for (size_t at = text.find(kSpaceMark, from); at != std::string_view::npos;
         at = text.find(kSpaceMark, at + kSpaceMark.size())) {
      if (at > 0 && !text.substr(0, at).ends_with(kSpaceMark)) return at;
    }
    return std::string_view::npos;
  }

  void encode_word(std::string_view word, Scratch& own, std::vector<int64_t>& ids) const {
    if (own.cache.find(word, ids)) return;
    const size_t before = ids.size();
    start_symbols(word, own);
    merge_symbols(own);
    own.parts.clear();
    for (int64_t at = own.symbols.empty() ? -1 : 0; at >= 0; at = own.symbols[static_cast<size_t>(at)].next) {
      add_used_parts(own.symbols[static_cast<size_t>(at)].text, own);
    }
    add_parts(own.parts, ids);
    own.cache.keep(word, ids.data() + before, ids.size() - before);
  }

  void start_symbols(std::string_view word, Scratch& own) const {
    own.symbols.clear();
    own.queue.clear();
    own.unused_parts.clear();
    while (!word.empty()) {
      Symbol symbol;
      const size_t length = pieces_.symbol_length(word, symbol.fixed);
      symbol.text = word.substr(0, length);
      word.remove_prefix(length);
      const auto at = static_cast<int64_t>(own.symbols.size());
      symbol.previous = at - 1;
      symbol.next = word.empty() ? -1 : at + 1;
      own.symbols.push_back(symbol);
    }
    for (size_t right = 1; right < own.symbols.size(); ++right) offer_merge(right - 1, right, own);
    std::make_heap(own.queue.begin(), own.queue.end(), Lower());
  }

  bool offer_merge(size_t left, size_t right, Scratch& own) const {
    const Symbol& a = own.symbols[left];
    const Symbol& b = own.symbols[right];
    if (a.fixed || b.fixed) return false;
    const std::string_view joint(a.text.data(), a.text.size() + b.text.size());
    const uint32_t id = pieces_.words.find(joint);
    if (id == kNoId) return false;
    own.queue.push_back({pieces_.scores[id], left, right, joint.size()});
    if (is_unused(id)) own.unused_parts[joint] = {a.text, b.text};
    return true;
  }

  void merge_symbols(Scratch& own) const {
    const auto push = [&](int64_t left, int64_t right) {
      if (left < 0 || right < 0) return;
      if (offer_merge(static_cast<size_t>(left), static_cast<size_t>(right), own)) {
        std::push_heap(own.queue.begin(), own.queue.end(), Lower());
      }
    };
    while (!own.queue.empty()) {
      std::pop_heap(own.queue.begin(), own.queue.end(), Lower());
      const Merge top = own.queue.back();
      own.queue.pop_back();
      Symbol& left = own.symbols[top.left];
      Symbol& right = own.symbols[top.right];
      if (left.text.empty() || right.text.empty() || left.text.size() + right.text.size() != top.size)
        continue;
      left.text = {left.text.data(), top.size};
      left.next = right.next;
      if (right.next >= 0)
        own.symbols[static_cast<size_t>(right.next)].previous = static_cast<int64_t>(top.left);
      right.text = {};
      push(left.previous, static_cast<int64_t>(top.left));
      push(static_cast<int64_t>(top.left), left.next);
    }
  }

  // Unused pieces serve to merge, but come apart again.
  void add_used_parts(std::string_view text, Scratch& own) const {
    std::vector<std::string_view> open = {text};
    while (!open.empty()) {
      const std::string_view part = open.back();
      open.pop_back();
      const uint32_t id = word_id(part);
      const auto apart =
          id != pieces_.unk_id && is_unused(id) ? own.unused_parts.find(part) : own.unused_parts.end();
      if (apart == own.unused_parts.end()) {
        own.parts.push_back({part, used_word_id(part)});
      } else {
        open.push_back(apart->second.second);
        open.push_back(apart->second.first);
      }
    }
  }

  bool splits_at_marks_ = false;
};

// A piece is a word with the mark before it, or a character.
class WholePieces : public SentencePieceModel {
 public:
  WholePieces(SentencePieces pieces, bool words) : SentencePieceModel(std::move(pieces)), words_(words) {}
  std::unique_ptr<ModelScratch> make_scratch() const override { return std::make_unique<ModelScratch>(); }

  void encode(std::string_view text, ModelScratch&, std::vector<int64_t>& ids) const override {
    std::vector<Part> parts;
    while (!text.empty()) {
      bool user_defined = false;
      const size_t length = words_ ? std::min(text.find(kSpaceMark, 1), text.size())
                                   : pieces_.symbol_length(text, user_defined);
      const std::string_view part = text.substr(0, length);
      parts.push_back({part, used_word_id(part)});
      text.remove_prefix(length);
    }
    add_parts(parts, ids);
  }

 private:
  bool words_;
};

}  // namespace

SentencePieces::SentencePieces(const sentencepiece::Model& model)
    : byte_fallback(model.trainer_spec().byte_fallback()) {
  const auto invalid = [](const auto&... words) {
    throw_error(ErrorCode::InvalidModel, "SentencePiece model: ", words...);
  };
  all.reserve(static_cast<size_t>(model.pieces_size()));
  words.reserve(static_cast<size_t>(model.pieces_size()));
  for (const auto& piece : model.pieces()) {
    const auto id = static_cast<uint32_t>(types.size());
    const std::string& text = piece.piece();
    const bool word = piece.type() == PieceType::NORMAL || piece.type() == PieceType::USER_DEFINED ||
                      piece.type() == PieceType::UNUSED;
    if (text.empty()) invalid("piece ", id, " is empty");
    if (!is_valid_utf8(text) || text.find('\0') != std::string::npos) invalid("piece ", id, " is no text");
    if (!std::isfinite(piece.score()))
      invalid("the score of piece ", id, " ('", text, "') is ", piece.score());
    if (word && words.find(text) != kNoId) invalid("two pieces are '", text, "'");
    if (piece.type() == PieceType::UNKNOWN && unk_id != kNoId)
      invalid("pieces ", unk_id, " and ", id, " both are the unknown one");
    if (piece.type() == PieceType::UNKNOWN) unk_id = id;
    if (piece.type() == PieceType::USER_DEFINED) user_defined.add(text, id);
    all.add(text, id);
    if (word) words.add(text, id);
    types.push_back(piece.type());
    scores.push_back(piece.score());
  }
  if (unk_id == kNoId && !byte_fallback) invalid("there is neither an unknown piece nor a fallback to bytes");
  byte_ids = find_byte_tokens(all);
  if (byte_fallback && std::find(byte_ids.begin(), byte_ids.end(), kNoId) != byte_ids.end()) {
    invalid("it falls back to bytes, but not all 256 bytes are pieces");
  }
}

size_t SentencePieces::symbol_length(std::string_view text, bool& is_user_defined) const {
  const size_t length = user_defined.longest_at(text, 0);
  is_user_defined = length > 0;
  return is_user_defined ? length : std::min(utf8_length(text.front()), text.size());
}

std::unique_ptr<Model> make_sentencepiece_model(SentencePieces pieces,
                                                sentencepiece::TrainerSpec::ModelType type) {
  switch (type) {
    case sentencepiece::TrainerSpec::UNIGRAM:
      return std::make_unique<UnigramPieces>(std::move(pieces));
    case sentencepiece::TrainerSpec::BPE:
      return std::make_unique<BpePieces>(std::move(pieces));
    case sentencepiece::TrainerSpec::WORD:
    case sentencepiece::TrainerSpec::CHAR:
      return std::make_unique<WholePieces>(std::move(pieces), type == sentencepiece::TrainerSpec::WORD);
  }
  throw_error(ErrorCode::Unsupported, "SentencePiece model: type ", static_cast<int>(type),
              " is not supported");
}

}  // namespace quern::tokenizer
