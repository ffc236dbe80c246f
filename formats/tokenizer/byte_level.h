// The printable alphabet in which byte-level tokenizers spell bytes (GPT-2's bytes_to_unicode).
#pragma once

#include <string>
#include <string_view>

namespace quern::tokenizer {

// The character of a byte: bytes 33-126, 161-172 and 174-255 stand for themselves, the other 68, in order,
// are U+0100 and up.
char32_t byte_level_char(unsigned char byte);
// The byte of a character, or -1.
int byte_of_byte_level_char(char32_t c);

// Appends `bytes` spelt in the alphabet.
void append_byte_level(std::string_view bytes, std::string& out);

}  // namespace quern::tokenizer
