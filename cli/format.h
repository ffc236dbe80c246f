// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace quern::cli {

std::string format_bytes(double bytes);      // "3.98 MB", "512 B"; powers of 1000
std::string format_count(double count);      // "3.94 M", "812"; powers of 1000
std::string format_seconds(double seconds);  // "340 ms", "1.2 s", "2 min 3 s"
// `digits` significant digits, without an exponent between 1e-4 and 1e15.
std::string format_number(double value, int digits = 4);
std::string format_fixed(double value, int decimals);
std::string format_percent(double share, int decimals = 2);  // 0.0123 is "1.23%"
std::string format_signed_percent(double share, int decimals = 2);
std::string format_grouped(int64_t count);  // "47,104"

}  // namespace quern::cli
