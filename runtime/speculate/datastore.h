// Texts as tokens on disk, with an index that finds where a run of tokens occurs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/file/mapped_file.h"

namespace quern::runtime {

// A suffix array over tokens, mapped: millions of tokens cost no memory of their own.
//
// Format (.qds, little-endian): a header of 64 bytes, {magic "QUERNDS1", version u32 = 1, CRC-32C of tokens
// and places u32, number of tokens u64, digest of the tokenizer as 32 bytes, CRC-32C of the header before it
// u32, zeros}; the tokens u32; their places u32 in the order of the texts that begin there. Of places whose
// next kCompared tokens are the same the earlier one comes first.
class Datastore {
 public:
  static constexpr int64_t kCompared = 64;

  // Writes a file, whole or not at all; equal tokens give equal bytes. `tokenizer`: 64 hexadecimal digits
  // that tell whose ids they are. Throws Error{InvalidArgument} for 2^32 tokens or more, or ids that are no
  // u32.
  static void build(std::span<const int64_t> tokens, std::string_view tokenizer,
                    const std::filesystem::path& path);
  // Throws Error{Io}, Error{Corrupt}, Error{Unsupported} for a newer version.
  static std::shared_ptr<const Datastore> open(const std::filesystem::path& path);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::string& tokenizer() const { return tokenizer_; }

  // Of places: first .. last - 1 in their order.
  struct Range {
    int64_t first = 0;
    int64_t last = 0;
    int64_t size() const { return last - first; }
  };
  // Where these tokens, at most kCompared, occur.
  Range find(std::span<const int64_t> tokens) const;
  // The token `ahead` behind the beginning of the i-th place; -1 beyond the end.
  int64_t token(int64_t i, int64_t ahead) const {
    const auto at = static_cast<uint64_t>(places_[static_cast<size_t>(i)]) + static_cast<uint64_t>(ahead);
    return at < tokens_.size() ? static_cast<int64_t>(tokens_[at]) : -1;
  }

 private:
  Datastore() = default;

  std::shared_ptr<const MappedFile> file_;
  std::span<const uint32_t> tokens_, places_;
  std::string tokenizer_;
};

}  // namespace quern::runtime
