// What is on the other end of standard output and standard error.
#pragma once

#include <string>
#include <string_view>

namespace quern::cli {

enum class Stream { Out, Err };

bool is_terminal(Stream stream);
// Columns of the terminal; 80 where there is none.
int terminal_width(Stream stream);

enum class Style { Bold, Dim, Red, Yellow, Green };

// `text` in that style where `stream` is a terminal that wants colours (NO_COLOR, TERM=dumb: it does not), as
// it is elsewhere.
std::string styled(std::string_view text, Style style, Stream stream);

// Columns that UTF-8 text takes: its characters, and none for combining ones or colours.
size_t display_width(std::string_view text);

}  // namespace quern::cli
