// Builds a tokenizer from a tiktoken file: a line per token, its bytes in base64 and its rank, which is its
// id.
#include <charconv>

#include "formats/tokenizer/base64.h"
#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/hints.h"
#include "formats/tokenizer/pipeline.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Special {
  const char* content;
  int64_t id;
};

// What is known of a published file by its number of ranks.
struct KnownFile {
  size_t ranks;
  std::string_view pattern;
  std::vector<Special> special;
  bool add_bos = false;
};

std::vector<KnownFile> known_files() {
  return {
      {50256, kGpt2, {{"<|endoftext|>", 50256}}},  // r50k_base, gpt2
      {50280, kGpt2, {{"<|endoftext|>", 50256}}},  // p50k_base
      {100256,
       kCl100k,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},                                             // cl100k_base
      {199998, kO200k, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},  // o200k_base
      {128000,
       kCl100k,
       {{"<|begin_of_text|>", 128000},
        {"<|end_of_text|>", 128001},
        {"<|finetune_right_pad_id|>", 128004},
        {"<|start_header_id|>", 128006},
        {"<|end_header_id|>", 128007},
        {"<|eom_id|>", 128008},
        {"<|eot_id|>", 128009},
        {"<|python_tag|>", 128010}},
       true},  // Llama 3
      {151643, kQwen, {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}}},  // Qwen
  };
}

Vocabulary read_ranks(std::string_view text) {
  Vocabulary vocabulary;
  std::string spelt;
  for (size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t space = line.find(' ');
    if (line.empty() || line == "\r") continue;
    uint64_t rank = 0;
    const char* end = line.data() + line.size() - (line.ends_with('\r') ? 1 : 0);
    const char* digits = line.data() + std::min(line.size(), space + 1);
    const auto parsed = std::from_chars(digits, end, rank);
    if (space == std::string_view::npos || parsed.ec != std::errc() || parsed.ptr != end) {
      throw_error(ErrorCode::Corrupt, "tiktoken file: line ", number, " is '", line.substr(0, 80),
                  "'; expected base64 and a rank");
    }
    spelt.clear();
    append_byte_level(decode_base64(line.substr(0, space)), spelt);
    if (vocabulary.find(spelt) != kNoId)
      throw_error(ErrorCode::InvalidModel, "tiktoken file: line ", number, " repeats a token");
    vocabulary.add(spelt, rank);
  }
  return vocabulary;
}

AddedToken special_token(std::string content, int64_t id) {
  AddedToken token;
  token.id = id;
  token.content = std::move(content);
  token.normalized = false;
  token.special = true;
  return token;
}

}  // namespace

std::shared_ptr<Pipeline> load_tiktoken(std::string_view text, const TiktokenOptions& options) {
  Vocabulary vocabulary = read_ranks(text);
  std::string pattern = options.pattern;
  std::vector<AddedToken> special = options.special_tokens;
  SpecialTokenOptions framing = options.special;
  for (const KnownFile& file : known_files()) {
    if (file.ranks != vocabulary.size()) continue;
    if (pattern.empty()) pattern = file.pattern;
    framing.add_bos = framing.add_bos || file.add_bos;
    for (const Special& token : file.special) special.push_back(special_token(token.content, token.id));
  }
  if (pattern.empty()) {
    throw_error(ErrorCode::Unsupported, "tiktoken file: ", vocabulary.size(),
                " ranks are of no file that quern knows, so its split pattern must be given; convert it to a "
                "tokenizer.json");
  }
  auto pipeline = std::make_shared<Pipeline>();
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  parts.push_back(make_split(make_regex_pattern(pattern), SplitBehavior::Isolated, false));
  parts.push_back(make_byte_level_pre_tokenizer({.add_prefix_space = false, .use_regex = false}));
  pipeline->pre_tokenizer = make_pre_tokenizer_sequence(std::move(parts));
  MergeTable merges = all_merges(vocabulary, [](uint32_t id) { return id; });
  pipeline->model =
      std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), BpeOptions{.ignore_merges = true});
  pipeline->decoder.push_back(byte_level_stage());
  pipeline->added.add(std::move(special), pipeline->model->vocabulary(), nullptr, {.keep_ids = true});
  pipeline->use_byte_model();
  guess_hints(*pipeline);
  frame_texts(*pipeline, pipeline->bos_hint.value_or(-1),
              pipeline->eos_hints.empty() ? -1 : pipeline->eos_hints.front(), framing);
  return pipeline;
}

}  // namespace quern::tokenizer
