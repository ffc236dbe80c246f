#include "cli/format.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace quern::cli {
namespace {

std::string print(const char* format, int precision, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, precision, value);
  return text.data();
}

// Three significant digits and a prefix.
std::string scaled(double value, const char* unit) {
  constexpr std::array<const char*, 5> kPrefixes = {"", "k", "M", "G", "T"};
  size_t prefix = 0;
  while (std::abs(value) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  int decimals = 0;
  if (prefix > 0 || value != std::floor(value))
    decimals = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  const std::string suffix = std::string(kPrefixes[prefix]) + unit;
  return format_fixed(value, decimals) + (suffix.empty() ? "" : " " + suffix);
}

}  // namespace

std::string format_bytes(double bytes) {
  return scaled(bytes, "B");
}
std::string format_count(double count) {
  return scaled(count, "");
}

std::string format_seconds(double seconds) {
  if (seconds < 0.9995) {
    const double ms = seconds * 1000;
    return format_fixed(ms, ms < 9.95 ? 1 : 0) + " ms";
  }
  if (seconds < 59.95) return format_fixed(seconds, seconds < 9.95 ? 1 : 0) + " s";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole % 3600 / 60) + " min";
}

std::string format_number(double value, int digits) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (value == 0) return "0";
  const double magnitude = std::abs(value);
  if (magnitude < 1e-4 || magnitude >= 1e15) return print("%.*e", digits - 1, value);
  const int before_point = static_cast<int>(std::floor(std::log10(magnitude))) + 1;
  return format_fixed(value, std::max(0, digits - before_point));
}

std::string format_fixed(double value, int decimals) {
  return print("%.*f", decimals, value);
}

std::string format_percent(double share, int decimals) {
  return format_fixed(share * 100, decimals) + "%";
}

std::string format_signed_percent(double share, int decimals) {
  return print("%+.*f", decimals, share * 100) + "%";
}

std::string format_grouped(int64_t count) {
  std::string digits = std::to_string(count < 0 ? -count : count);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return (count < 0 ? "-" : "") + digits;
}

}  // namespace quern::cli
