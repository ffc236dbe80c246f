// Builds a tokenizer from llama2.c's tokenizer.bin: i32 length of the longest token, then for each token f32
// score, i32 length, bytes; little-endian (https://github.com/karpathy/llama2.c, run.c).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/tokenizer/hints.h"
#include "formats/tokenizer/pipeline.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

constexpr int64_t kBos = 1;
constexpr int64_t kEos = 2;

template <class T>
T read(std::string_view& bytes) {
  T value;
  if (bytes.size() < sizeof value)
    throw_error(ErrorCode::Corrupt, "llama2.c tokenizer: the file ends within a token");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

struct Tokens {
  Vocabulary vocabulary;
  std::vector<float> scores;
};

Tokens read_tokens(std::string_view bytes) {
  Tokens tokens;
  const auto longest = read<int32_t>(bytes);
  while (!bytes.empty()) {
    const auto score = read<float>(bytes);
    const auto length = read<int32_t>(bytes);
    if (length < 0 || length > longest || static_cast<size_t>(length) > bytes.size()) {
      throw_error(ErrorCode::Corrupt, "llama2.c tokenizer: token ", tokens.scores.size(), " has a length of ",
                  length, "; at most ", longest, " are announced, and ", bytes.size(), " bytes are left");
    }
    const std::string_view text = bytes.substr(0, static_cast<size_t>(length));
    bytes.remove_prefix(text.size());
    if (!is_valid_utf8(text) || std::isnan(score)) {
      throw_error(ErrorCode::InvalidModel, "llama2.c tokenizer: token ", tokens.scores.size(),
                  " is no text, or its score no number");
    }
    tokens.vocabulary.add(text, tokens.scores.size());
    tokens.scores.push_back(score);
  }
  return tokens;
}

// Ranks by falling score; equal scores have one rank, so that the leftmost pair merges first.
std::vector<uint32_t> ranks_of(const std::vector<float>& scores) {
  std::vector<float> distinct = scores;
  std::sort(distinct.begin(), distinct.end(), std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<uint32_t> ranks;
  for (const float score : scores) {
    ranks.push_back(static_cast<uint32_t>(
        std::lower_bound(distinct.begin(), distinct.end(), score, std::greater<>()) - distinct.begin()));
  }
  return ranks;
}

}  // namespace

std::shared_ptr<Pipeline> load_llama2c(std::string_view bytes, const SpecialTokenOptions& options) {
  Tokens tokens = read_tokens(bytes);
  if (tokens.scores.size() < 3)
    throw_error(ErrorCode::InvalidModel, "llama2.c tokenizer: it has only ", tokens.scores.size(), " tokens");
  auto pipeline = std::make_shared<Pipeline>();
  std::vector<AddedToken> special;
  for (int64_t id = 0; id <= kEos; ++id) {
    AddedToken token;
    token.id = id;
    token.content = tokens.vocabulary.text(static_cast<uint32_t>(id));
    token.special = true;
    special.push_back(std::move(token));
  }
  pipeline->added.add(std::move(special), tokens.vocabulary, nullptr,
                      {.match_in_text = false, .keep_ids = true});
  const std::vector<uint32_t> ranks = ranks_of(tokens.scores);
  MergeTable merges = all_merges(tokens.vocabulary, [&](uint32_t id) { return ranks[id]; });
  BpeOptions bpe;
  bpe.unk_token = std::string(tokens.vocabulary.text(0));
  bpe.byte_fallback = true;
  pipeline->model = std::make_unique<Bpe>(std::move(tokens.vocabulary), std::move(merges), bpe);
  pipeline->normalizer = make_prepend(" ");
  pipeline->decoder = {byte_fallback_stage(), fuse_stage(), strip_stage(U' ', 1, 0)};
  frame_texts(*pipeline, kBos, kEos, options);
  return pipeline;
}

}  // namespace quern::tokenizer
