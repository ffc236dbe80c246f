#include "formats/tokenizer/hints.h"

#include <algorithm>
#include <array>

namespace quern::tokenizer {
namespace {

constexpr std::array<std::string_view, 13> kEnds = {"<|endoftext|>",
                                                    "</s>",
                                                    "<eos>",
                                                    "<|end_of_text|>",
                                                    "<|eot_id|>",
                                                    "<|im_end|>",
                                                    "<|end|>",
                                                    "<end_of_turn>",
                                                    "<|eom_id|>",
                                                    "<|return|>",
                                                    "[SEP]",
                                                    "<|eot|>",
                                                    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};
constexpr std::array<std::string_view, 5> kStarts = {
    "<s>", "<bos>", "<|begin_of_text|>", "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>", "<|endoftext|>"};

}  // namespace

void guess_hints(Pipeline& pipeline) {
  for (const AddedToken& token : pipeline.added.tokens()) {
    if (token.special && std::find(kEnds.begin(), kEnds.end(), token.content) != kEnds.end()) {
      pipeline.eos_hints.push_back(token.id);
    }
  }
  for (const auto& parts : pipeline.post_processor.templates()) {
    if (!parts.empty() && !parts.front().is_text && !parts.front().ids.empty()) {
      pipeline.bos_hint = parts.front().ids.front();
    }
  }
  for (const std::string_view name : kStarts) {
    if (pipeline.bos_hint) break;
    const AddedToken* token = pipeline.added.find(name);
    if (token != nullptr && token->special) pipeline.bos_hint = token->id;
  }
}

void frame_texts(Pipeline& pipeline, int64_t bos_id, int64_t eos_id, const SpecialTokenOptions& options) {
  const auto exists = [&](int64_t id) { return id >= 0 && id < pipeline.vocab_size(); };
  std::vector<PostProcessor::Part> parts;
  if (exists(bos_id)) pipeline.bos_hint = bos_id;
  if (exists(bos_id) && options.add_bos) parts.push_back({.is_text = false, .ids = {bos_id}});
  parts.push_back({.is_text = true, .ids = {}});
  if (exists(eos_id) && pipeline.eos_hints.empty()) pipeline.eos_hints.push_back(eos_id);
  if (exists(eos_id) && options.add_eos) parts.push_back({.is_text = false, .ids = {eos_id}});
  if (parts.size() > 1) pipeline.post_processor.add(std::move(parts));
}

}  // namespace quern::tokenizer
