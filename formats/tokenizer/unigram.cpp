#include "formats/tokenizer/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/tokenizer/byte_tokens.h"
#include "formats/tokenizer/piece_cache.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

// How much worse than the worst token an unknown character is.
constexpr double kUnkPenalty = 10.0;
constexpr size_t kNowhere = std::numeric_limits<size_t>::max();

// The best path to a position of the text.
struct BestEnd {
  double score = 0.0;
  size_t begin = kNowhere;  // of the path's last token
  uint32_t id = 0;
};

}  // namespace

struct Unigram::Scratch : ModelScratch {
  PieceCache cache;
  std::vector<BestEnd> best;
  std::vector<std::pair<size_t, size_t>> parts;
};

Unigram::Unigram(const std::vector<std::pair<std::string, double>>& pieces, UnigramOptions options)
    : options_(options) {
  if (options.unk_id && *options.unk_id >= pieces.size()) {
    throw_error(ErrorCode::InvalidModel, "tokenizer: unk_id is ", *options.unk_id, " of ", pieces.size(),
                " tokens");
  }
  vocabulary_.reserve(pieces.size());
  double min_score = std::numeric_limits<double>::infinity();
  for (const auto& [text, score] : pieces) {
    if (!std::isfinite(score)) {
      throw_error(ErrorCode::InvalidModel, "tokenizer: the score of token '", text, "' is ", score);
    }
    vocabulary_.add(text, scores_.size());
    scores_.push_back(score);
    min_score = std::min(min_score, score);
  }
  unk_score_ = min_score - kUnkPenalty;
  std::vector<std::pair<std::string_view, uint32_t>> entries;
  for (uint32_t id = 0; id < scores_.size(); ++id) entries.emplace_back(vocabulary_.text(id), id);
  trie_ = ByteTrie(std::move(entries));
  byte_ids_ = find_byte_tokens(vocabulary_);
}

std::unique_ptr<ModelScratch> Unigram::make_scratch() const {
  return std::make_unique<Scratch>();
}

void Unigram::encode(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const {
  auto& own = static_cast<Scratch&>(scratch);
  if (own.cache.find(piece, ids)) return;
  const size_t before = ids.size();
  find_best_path(piece, own);
  // Backwards along the path; neighbouring unknown characters are one part.
  own.parts.clear();
  bool last_unknown = false;
  for (size_t end = piece.size(); end > 0;) {
    const BestEnd& best = own.best[end];
    const bool unknown = options_.unk_id && best.id == *options_.unk_id;
    if (unknown && last_unknown) {
      own.parts.back().first = best.begin;
    } else {
      own.parts.emplace_back(best.begin, end);
    }
    last_unknown = unknown;
    end = best.begin;
  }
  for (auto part = own.parts.rbegin(); part != own.parts.rend(); ++part) {
    add_part(piece.substr(part->first, part->second - part->first), ids);
  }
  own.cache.keep(piece, ids.data() + before, ids.size() - before);
}

void Unigram::find_best_path(std::string_view piece, Scratch& scratch) const {
  auto& best = scratch.best;
  best.assign(piece.size() + 1, {});
  const auto offer = [&](size_t begin, size_t end, double score, uint32_t id) {
    if (best[end].begin != kNowhere && score <= best[end].score) return;
    best[end] = {score, begin, id};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const size_t character = utf8_length(piece[begin]);
    const double so_far = best[begin].score;
    bool known = false;
    trie_.for_each_prefix(piece.substr(begin), [&](size_t length, uint32_t id) {
      offer(begin, begin + length, scores_[id] + so_far, id);
      known = known || length == character;
    });
    if (!known) {
      if (!options_.unk_id) {
        throw_error(ErrorCode::BadData, "tokenizer: the character '", piece.substr(begin, character),
                    "' is not in the vocabulary, which has no unknown token");
      }
      offer(begin, begin + character, unk_score_ + so_far, static_cast<uint32_t>(*options_.unk_id));
    }
    begin += character;
  }
}

// As in `tokenizers`, what the path calls unknown is looked up once more, as a whole.
void Unigram::add_part(std::string_view part, std::vector<int64_t>& ids) const {
  const uint32_t id = vocabulary_.find(part);
  if (id != kNoId) {
    ids.push_back(id);
    return;
  }
  if (options_.byte_fallback && append_byte_tokens(part, byte_ids_, ids)) return;
  ids.push_back(static_cast<int64_t>(*options_.unk_id));
}

}  // namespace quern::tokenizer
