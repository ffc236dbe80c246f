// An answer in independent parts: an outline first, then all of its points at once (Ning et al., Skeleton-of-
// Thought, 2024). What the model is asked with is the caller's to say.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/generate/generate.h"

namespace quern::runtime {

// The points of a list as models write it: "1. Point", "2) Point", "- Point", "* Point", each from its mark
// to the end of its line, without blanks around it and without "**" or a colon at its ends. Lines without a
// mark are no points. At most `most`.
std::vector<std::string> outline_points(std::string_view text, size_t most = 64);

// Tokens that all of them begin with. 0 where there are none.
int64_t common_beginning(std::span<const std::vector<int64_t>> prompts);

struct ForkedOutput {
  GenerateOutput output;      // cached_tokens: of the prompts, those that they share
  int64_t prefix_tokens = 0;  // of their common beginning, computed once
};

// Decodes prompts side by side as forks of their common beginning, which is computed first, and once. Each
// gives the ids that it would give alone. Throws as generate() does. options.prefix_cache: where the
// beginning may be known, and stays; null: none outlives the call.
ForkedOutput generate_forks(Session& session, std::span<const std::vector<int64_t>> prompts,
                            GenerateOptions options, const GenerateCallback& callback = {});

}  // namespace quern::runtime
