// The frame of a report: one self-contained page, no scripts, no network.
#pragma once

#include <string>

namespace quern::cli::report {

// `title` is escaped, `body` is HTML.
std::string page(const std::string& title, const std::string& body);

// A plot with what it shows and how to read it; empty where the plot is.
std::string figure(const std::string& title, const std::string& reading, const std::string& plot);

}  // namespace quern::cli::report
