// "did you mean": the names nearest to one that was not found.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quern::passes {

// Insertions, deletions, substitutions and transpositions of neighbours that turn `a` into `b` (optimal
// string alignment). O(|a|*|b|).
int edit_distance(std::string_view a, std::string_view b);

// At most `limit` of `names`, nearest first: those that contain `wanted` or are contained in it, and those
// within a third of its length in edits. Equal distances keep the order of `names`.
std::vector<std::string> near_names(std::string_view wanted, const std::vector<std::string>& names,
                                    size_t limit = 3);

// "; did you mean 'a', 'b' or 'c'?", or "" where nothing is near.
std::string did_you_mean(std::string_view wanted, const std::vector<std::string>& names);

}  // namespace quern::passes
