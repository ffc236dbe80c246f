// Token texts and their ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quern::tokenizer {

constexpr uint32_t kNoId = 0xFFFFFFFF;

class Vocabulary {
 public:
  // Throws Error{InvalidModel} where the id belongs to another token already, or is so large that the ids
  // could not be rows of a table. Of two equal texts, find() knows the one added last.
  void add(std::string_view token, uint64_t id);

  // kNoId if there is no such token.
  uint32_t find(std::string_view token) const;
  bool has(uint64_t id) const { return id < by_id_.size() && by_id_[id] != kNoId; }
  // The text of an id that has() a token; valid until the next add().
  std::string_view text(uint32_t id) const;

  size_t size() const { return entries_.size(); }
  // Largest id + 1.
  size_t id_limit() const { return by_id_.size(); }

  void reserve(size_t tokens);

 private:
  struct Entry {
    size_t offset;
    uint32_t length;
    uint32_t id;
  };
  void rehash(size_t slots);
  std::string_view text_of(const Entry& entry) const { return {texts_.data() + entry.offset, entry.length}; }

  std::string texts_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> by_id_;  // entry of each id
  std::vector<uint32_t> slots_;  // open addressing: entry, or kNoId
};

}  // namespace quern::tokenizer
