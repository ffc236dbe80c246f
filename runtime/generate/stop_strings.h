// Finds the strings that end a text while it comes in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quern::runtime {

class StopStrings {
 public:
  // Empty strings are an Error{InvalidArgument}: they would end every text at once.
  explicit StopStrings(std::vector<std::string> strings);

  // Adds text; returns what of it, and of what was held before, can't be part of a stop string any more. Once
  // a stop string is complete the text before it is returned and nothing ever after. Of several that one
  // piece completes, the one that begins first counts.
  std::string push(std::string_view text);
  // What is still held, at the end of the text.
  std::string finish();

  bool stopped() const { return !met_.empty(); }
  const std::string& met() const { return met_; }  // the stop string, or empty

 private:
  size_t held_length() const;

  std::vector<std::string> strings_;
  std::string pending_;
  std::string met_;
};

}  // namespace quern::runtime
