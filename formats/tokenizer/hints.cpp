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

}  // namespace quern::tokenizer
