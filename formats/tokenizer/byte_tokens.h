// The tokens <0x00> to <0xFF> that stand for single bytes.
#pragma once

#include <array>
#include <cstdio>
#include <string_view>
#include <vector>

#include "formats/tokenizer/vocabulary.h"

namespace quern::tokenizer {

// Their ids; kNoId for one that the vocabulary lacks.
inline std::array<uint32_t, 256> find_byte_tokens(const Vocabulary& vocabulary) {
  std::array<uint32_t, 256> ids;
  for (unsigned byte = 0; byte < 256; ++byte) {
    char token[8];
    std::snprintf(token, sizeof token, "<0x%02X>", byte);
    ids[byte] = vocabulary.find(token);
  }
  return ids;
}

// Appends the ids of all bytes; none, and false, if one is missing.
template <class Id>
bool append_byte_tokens(std::string_view bytes, const std::array<uint32_t, 256>& byte_ids,
                        std::vector<Id>& ids) {
  for (const char byte : bytes) {
    if (byte_ids[static_cast<unsigned char>(byte)] == kNoId) return false;
  }
  for (const char byte : bytes) ids.push_back(byte_ids[static_cast<unsigned char>(byte)]);
  return true;
}

}  // namespace quern::tokenizer
