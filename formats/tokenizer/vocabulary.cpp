#include "formats/tokenizer/vocabulary.h"

#include <algorithm>

#include "formats/tokenizer/hash.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

// Ids above this would make tables of absurd size out of a small file.
constexpr uint64_t kMaxId = (1U << 24) - 1;

}  // namespace

void Vocabulary::reserve(size_t tokens) {
  entries_.reserve(tokens);
  size_t slots = 16;
  while (slots < 2 * tokens) slots *= 2;
  if (slots > slots_.size()) rehash(slots);
}

void Vocabulary::rehash(size_t slots) {
  slots_.assign(slots, kNoId);
  for (uint32_t e = 0; e < entries_.size(); ++e) {
    size_t at = hash_bytes(text_of(entries_[e])) & (slots - 1);
    while (slots_[at] != kNoId && text_of(entries_[slots_[at]]) != text_of(entries_[e])) {
      at = (at + 1) & (slots - 1);
    }
    slots_[at] = e;
  }
}

void Vocabulary::add(std::string_view token, uint64_t id) {
  if (id > kMaxId) {
    throw_error(ErrorCode::InvalidModel, "tokenizer: token '", token, "' has the id ", id, "; ids end at ",
                kMaxId);
  }
  if (has(id)) {
    throw_error(ErrorCode::InvalidModel, "tokenizer: the tokens '", text(static_cast<uint32_t>(id)),
                "' and '", token, "' have the same id ", id);
  }
  if (2 * (entries_.size() + 1) > slots_.size()) rehash(std::max<size_t>(16, 2 * slots_.size()));
  if (id >= by_id_.size()) by_id_.resize(id + 1, kNoId);
  by_id_[id] = static_cast<uint32_t>(entries_.size());
  size_t at = hash_bytes(token) & (slots_.size() - 1);
  while (slots_[at] != kNoId && text_of(entries_[slots_[at]]) != token) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = static_cast<uint32_t>(entries_.size());
  entries_.push_back({texts_.size(), static_cast<uint32_t>(token.size()), static_cast<uint32_t>(id)});
  texts_.append(token);
}

uint32_t Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return kNoId;
  for (size_t at = hash_bytes(token) & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at] == kNoId) return kNoId;
    const Entry& entry = entries_[slots_[at]];
    if (text_of(entry) == token) return entry.id;
  }
}

std::string_view Vocabulary::text(uint32_t id) const {
  return text_of(entries_[by_id_[id]]);
}

}  // namespace quern::tokenizer
