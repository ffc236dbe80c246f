#include "runtime/speculate/drafter.h"

namespace quern::runtime {

bool Proposal::is_chain() const {
  for (size_t i = 0; i < parents.size(); ++i) {
    if (parents[i] != static_cast<int32_t>(i) - 1) return false;
  }
  return true;
}

void Proposal::clear() {
  tokens.clear();
  parents.clear();
  classes.clear();
  drawn_from.clear();
}

void Proposal::add(int64_t token, int32_t parent, int32_t token_class) {
  tokens.push_back(token);
  parents.push_back(parent);
  classes.push_back(token_class);
}

void Proposal::keep(std::span<const int32_t> nodes) {
  std::vector<int32_t> place(tokens.size(), -1);
  size_t kept = 0;
  for (const int32_t node : nodes) {
    const auto from = static_cast<size_t>(node);
    place[from] = static_cast<int32_t>(kept);
    tokens[kept] = tokens[from];
    classes[kept] = classes[from];
    parents[kept] = parents[from] < 0 ? -1 : place[static_cast<size_t>(parents[from])];
    if (!drawn_from.empty() && kept != from) drawn_from[kept] = std::move(drawn_from[from]);
    ++kept;
  }
  tokens.resize(kept);
  parents.resize(kept);
  classes.resize(kept);
  if (!drawn_from.empty()) drawn_from.resize(kept);
}

}  // namespace quern::runtime
