#include <algorithm>
#include <bit>
#include <cstring>

#include "formats/file/checksum.h"
#include "formats/file/mapped_file.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace quern {
namespace {

alignas(16) constexpr uint32_t kRound[64] = {
    0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
    0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
    0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
    0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
    0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
    0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
    0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
    0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2};

uint32_t load_big_endian(const uint8_t* data) {
  return uint32_t{data[0]} << 24 | uint32_t{data[1]} << 16 | uint32_t{data[2]} << 8 | uint32_t{data[3]};
}

#if defined(__x86_64__)
// With the SHA extensions: two rounds an instruction, the state held as (ABEF, CDGH).
__attribute__((target("sha,sse4.1"))) void sha256_blocks_shani(uint32_t* state, const uint8_t* data,
                                                               size_t blocks) {
  const __m128i kBigEndian = _mm_set_epi64x(0x0C0D0E0F08090A0BLL, 0x0405060700010203LL);
  __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i words[4];
    for (int i = 0; i < 16; ++i) {
      __m128i& current = words[i % 4];
      if (i < 4) {
        current = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), kBigEndian);
      } else {
        const __m128i previous = words[(i + 3) % 4];
        const __m128i middle = _mm_alignr_epi8(previous, words[(i + 2) % 4], 4);
        current = _mm_add_epi32(_mm_sha256msg1_epu32(current, words[(i + 1) % 4]), middle);
        current = _mm_sha256msg2_epu32(current, previous);
      }
      const __m128i sum =
          _mm_add_epi32(current, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  dcba = _mm_blend_epi16(feba, dchg, 0xF0);
  hgfe = _mm_alignr_epi8(dchg, feba, 8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), dcba);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), hgfe);
}

bool has_sha_extensions() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0 &&
         __builtin_cpu_supports("sse4.1") != 0;
}
#endif

}  // namespace

void detail::sha256_blocks_portable(uint32_t* state, const uint8_t* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) w[i] = load_big_endian(data + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    std::copy_n(state, 8, v);
    for (int i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
      const uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
      const uint32_t first = v[7] + s1 + choice + kRound[i] + w[i];
      const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
      const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
      std::copy_backward(v, v + 7, v + 8);
      v[4] += first;
      v[0] = first + s0 + majority;
    }
    for (int i = 0; i < 8; ++i) state[i] += v[i];
  }
}

void detail::sha256_blocks(uint32_t* state, const uint8_t* data, size_t blocks) {
#if defined(__x86_64__)
  static const bool fast = has_sha_extensions();
  if (fast) return sha256_blocks_shani(state, data, blocks);
#endif
  sha256_blocks_portable(state, data, blocks);
}

void Sha256::update(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  const size_t filled = length_ % 64;
  length_ += left;
  if (filled > 0) {
    const size_t piece = std::min(left, 64 - filled);
    std::copy_n(data, piece, block_.data() + filled);
    data += piece;
    left -= piece;
    if (filled + piece < 64) return;
    detail::sha256_blocks(state_.data(), block_.data(), 1);
  }
  detail::sha256_blocks(state_.data(), data, left / 64);
  std::copy_n(data + left / 64 * 64, left % 64, block_.data());
}

Sha256::Digest Sha256::finish() {
  size_t filled = length_ % 64;
  block_[filled++] = 0x80;
  if (filled > 56) {
    std::fill(block_.begin() + static_cast<ptrdiff_t>(filled), block_.end(), uint8_t{0});
    detail::sha256_blocks(state_.data(), block_.data(), 1);
    filled = 0;
  }
  std::fill(block_.begin() + static_cast<ptrdiff_t>(filled), block_.end(), uint8_t{0});
  const uint64_t bits = length_ * 8;
  for (size_t i = 0; i < 8; ++i) block_[56 + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  detail::sha256_blocks(state_.data(), block_.data(), 1);
  Digest digest;
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string to_hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string sha256_of_file(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  Sha256 hash;
  // In pieces whose pages are given back, so that a huge file does not fill the memory.
  constexpr size_t kPiece = size_t{1} << 26;
  for (size_t offset = 0; offset < file->size(); offset += kPiece) {
    const auto piece = file->bytes().subspan(offset, std::min(kPiece, file->size() - offset));
    hash.update(piece);
    file->drop_pages(piece);
  }
  return to_hex(hash.finish());
}

}  // namespace quern
