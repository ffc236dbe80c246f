// Hashing for the lookup tables of tokenizers.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace quern::tokenizer {

inline uint64_t mix_bits(uint64_t value) {
  value *= 0x9E3779B97F4A7C15U;
  return value ^ value >> 32;
}

inline uint64_t hash_bytes(std::string_view bytes) {
  const char* p = bytes.data();
  size_t left = bytes.size();
  uint64_t hash = left;
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    hash = mix_bits(hash ^ word);
  }
  if (left > 0) {
    uint64_t word = 0;
    std::memcpy(&word, p, left);
    hash = mix_bits(hash ^ word);
  }
  return mix_bits(hash);
}

}  // namespace quern::tokenizer
