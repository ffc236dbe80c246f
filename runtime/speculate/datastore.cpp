#include "runtime/speculate/datastore.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "formats/file/atomic_file.h"
#include "formats/file/checksum.h"
#include "ir/error.h"

namespace quern::runtime {
namespace {

constexpr std::string_view kMagic = "QUERNDS1";
constexpr uint32_t kVersion = 1;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t content_crc;
  uint64_t tokens;
  uint8_t tokenizer[32];
  uint32_t header_crc;
  uint8_t zeros[4];
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

uint32_t crc_of(const Header& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_crc)));
}

std::vector<uint32_t> sorted_places(std::span<const uint32_t> tokens) {
  std::vector<uint32_t> places(tokens.size());
  std::iota(places.begin(), places.end(), 0U);
  std::sort(places.begin(), places.end(), [&](uint32_t a, uint32_t b) {
    if (a == b) return false;
    const size_t left = tokens.size() - std::max(a, b);
    const size_t most = std::min<size_t>(left, Datastore::kCompared);
    const auto begin = tokens.begin();
    const auto [x, y] = std::mismatch(begin + a, begin + a + static_cast<int64_t>(most), begin + b);
    if (x != begin + a + static_cast<int64_t>(most)) return *x < *y;
    // What ends earlier comes first, as a word before those that it begins.
    return most < Datastore::kCompared ? a > b : a < b;
  });
  return places;
}

uint8_t digit(char c) {
  return static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10);
}

}  // namespace

void Datastore::build(std::span<const int64_t> tokens, std::string_view tokenizer,
                      const std::filesystem::path& path) {
  constexpr auto kMost = std::numeric_limits<uint32_t>::max();
  if (tokens.size() >= kMost) {
    throw_error(ErrorCode::InvalidArgument, "a datastore of ", tokens.size(), " tokens; at most ", kMost - 1,
                " can be indexed");
  }
  std::vector<uint32_t> content;
  content.reserve(2 * tokens.size());
  for (const int64_t token : tokens) {
    if (token < 0 || token > kMost) throw_error(ErrorCode::InvalidArgument, "token id ", token, " is no u32");
    content.push_back(static_cast<uint32_t>(token));
  }
  const std::vector<uint32_t> places = sorted_places(content);
  content.insert(content.end(), places.begin(), places.end());
  Header header = {};
  kMagic.copy(header.magic, sizeof(header.magic));
  header.version = kVersion;
  header.tokens = tokens.size();
  for (size_t i = 0; i < sizeof(header.tokenizer) && 2 * i + 1 < tokenizer.size(); ++i) {
    header.tokenizer[i] = static_cast<uint8_t>(digit(tokenizer[2 * i]) * 16 + digit(tokenizer[2 * i + 1]));
  }
  header.content_crc = crc32c(std::as_bytes(std::span(content)));
  header.header_crc = crc_of(header);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

std::shared_ptr<const Datastore> Datastore::open(const std::filesystem::path& path) {
  const std::shared_ptr<Datastore> store(new Datastore);
  store->file_ = MappedFile::open(path);
  const MappedFile& file = *store->file_;
  const auto fail = [&](std::string_view what) {
    throw_error(ErrorCode::Corrupt, file.name(), " is no sound datastore: ", what);
  };
  Header header;
  std::memcpy(&header, file.slice(0, sizeof(header), "the header").data(), sizeof(header));
  if (std::string_view(header.magic, sizeof(header.magic)) != kMagic) fail("it does not begin like one");
  if (header.header_crc != crc_of(header)) fail("its header is damaged");
  if (header.version != kVersion) {
    throw_error(ErrorCode::Unsupported, file.name(), " has version ", header.version,
                " of the format; this quern reads version ", kVersion);
  }
  if (header.tokens != (file.size() - sizeof(header)) / (2 * sizeof(uint32_t)) ||
      (file.size() - sizeof(header)) % (2 * sizeof(uint32_t)) != 0) {
    fail("its size is not what it says");
  }
  const auto content = file.bytes().subspan(sizeof(header));
  if (crc32c(content) != header.content_crc) fail("its content is damaged");
  const auto* words = reinterpret_cast<const uint32_t*>(content.data());
  store->tokens_ = {words, header.tokens};
  store->places_ = {words + header.tokens, header.tokens};
  for (const uint32_t place : store->places_) {
    if (place >= header.tokens) fail("a place lies outside");
  }
  store->tokenizer_ = to_hex(header.tokenizer);
  return store;
}

Datastore::Range Datastore::find(std::span<const int64_t> wanted) const {
  const auto compare = [&](uint32_t place) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (place + i >= tokens_.size()) return -1;
      const auto token = static_cast<int64_t>(tokens_[place + i]);
      if (token != wanted[i]) return token < wanted[i] ? -1 : 1;
    }
    return 0;
  };
  const auto first =
      std::partition_point(places_.begin(), places_.end(), [&](uint32_t p) { return compare(p) < 0; });
  const auto last = std::partition_point(first, places_.end(), [&](uint32_t p) { return compare(p) == 0; });
  return {first - places_.begin(), last - places_.begin()};
}

}  // namespace quern::runtime
