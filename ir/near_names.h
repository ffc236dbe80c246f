// Suggestions for a name that was not found.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

// The names in `known` that a person who typed `wanted` may have meant, nearest first, at most `limit`:
// within a few edits (Damerau-Levenshtein, upper and lower case alike), or containing it. Ties in order of
// `known`.
std::vector<std::string> near_names(std::string_view wanted, std::span<const std::string> known,
                                    size_t limit = 3);

// "; did you mean 'a', 'b' or 'c'?", to end a message with; empty if nothing is near.
std::string did_you_mean(std::string_view wanted, std::span<const std::string> known, size_t limit = 3);

}  // namespace quern
