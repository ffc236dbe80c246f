// The records of a ZIP file, as far as .npz files need them (APPNOTE.TXT 6.3, section 4.3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace quern::npy::zip {

inline constexpr uint32_t kLocalMagic = 0x04034B50;
inline constexpr uint32_t kCentralMagic = 0x02014B50;
inline constexpr uint32_t kEndMagic = 0x06054B50;
inline constexpr uint32_t kEnd64Magic = 0x06064B50;
inline constexpr uint32_t kLocator64Magic = 0x07064B50;

// Without the parts of variable length.
inline constexpr size_t kLocalSize = 30;
inline constexpr size_t kCentralSize = 46;
inline constexpr size_t kEndSize = 22;
inline constexpr size_t kEnd64Size = 56;
inline constexpr size_t kLocator64Size = 20;

inline constexpr uint32_t kIn64 = 0xFFFFFFFF;  // "the value is in the ZIP64 record"
inline constexpr uint16_t kExtra64 = 1;
inline constexpr uint16_t kStored = 0;
inline constexpr uint16_t kDeflated = 8;

// The caller has checked that the bytes are there.
template <class T>
T load(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace quern::npy::zip
