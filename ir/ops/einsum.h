// The equation of an Einsum node, resolved for given ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quern {

// Labels are small integers: letters first, then the dimensions of the ellipsis.
struct EinsumEquation {
  std::vector<std::vector<int>> inputs;  // labels of each input's dimensions
  std::vector<int> output;
  int labels = 0;
};

// Parses "ij,jk->ik", "...ij->...ji", "ii->i", an implicit output (labels that occur once, in alphabetical
// order) and spaces. Nothing where the equation is malformed or does not fit the ranks.
std::optional<EinsumEquation> parse_einsum(const std::string& equation, const std::vector<int64_t>& ranks);

}  // namespace quern
