// RFC 4648 base64.
#pragma once

#include <string>
#include <string_view>

namespace quern::tokenizer {

// Throws Error{Corrupt} for what isn't base64. Padding may be left out.
std::string decode_base64(std::string_view text);

}  // namespace quern::tokenizer
