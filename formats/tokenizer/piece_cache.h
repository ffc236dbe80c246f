// The ids of short pieces seen lately, in bounded memory.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "formats/tokenizer/hash.h"
#include "formats/tokenizer/vocabulary.h"

namespace quern::tokenizer {

// Direct-mapped: a piece takes the place of the one that shared its slot. One slot is one cache line.
class PieceCache {
 public:
  static constexpr size_t kMaxPiece = 34;
  static constexpr size_t kMaxIds = 7;

  // Appends the ids of `piece` if it is known.
  bool find(std::string_view piece, std::vector<int64_t>& ids) const {
    if (piece.size() > kMaxPiece || slots_.empty()) return false;
    const Slot& slot = slots_[slot_of(piece)];
    if (slot.length != piece.size() || std::memcmp(slot.piece, piece.data(), piece.size()) != 0) return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
    return true;
  }

  // `ids` are those of `piece`; what is too long is not kept.
  void keep(std::string_view piece, const int64_t* ids, size_t count) {
    if (piece.size() > kMaxPiece || count > kMaxIds) return;
    if (slots_.empty()) slots_.resize(kSlots);
    Slot& slot = slots_[slot_of(piece)];
    slot.length = static_cast<uint8_t>(piece.size());
    slot.count = static_cast<uint8_t>(count);
    std::memcpy(slot.piece, piece.data(), piece.size());
    for (size_t i = 0; i < count; ++i) slot.ids[i] = static_cast<uint32_t>(ids[i]);
  }

 private:
  static constexpr size_t kSlots = size_t{1} << 14;
  struct alignas(64) Slot {
    uint8_t length = 0;  // 0: empty
    uint8_t count = 0;
    char piece[kMaxPiece];
    uint32_t ids[kMaxIds];
  };
  static size_t slot_of(std::string_view piece) { return hash_bytes(piece) & (kSlots - 1); }

  std::vector<Slot> slots_;
};

}  // namespace quern::tokenizer
