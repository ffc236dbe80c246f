// The program under test.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "tests/support/run_program.h"

namespace quern::test {

inline std::string quern_binary() {
  return build_path("cli/quern").string();
}

inline ProgramResult quern(std::vector<std::string> words, const ProgramRun& how = {}) {
  words.insert(words.begin(), quern_binary());
  return run_program(words, how);
}

inline std::string example(const std::string& name) {
  return source_path("examples/storyteller/" + name).string();
}

// Runs with --json and reads what it prints; the status must be `status`.
inline nlohmann::json quern_json(std::vector<std::string> words, int status = 0, const ProgramRun& how = {}) {
  words.emplace_back("--json");
  const ProgramResult result = quern(words, how);
  EXPECT_EQ(result.status, status) << result.err;
  const nlohmann::json object = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_TRUE(object.is_object()) << result.out;
  return object;
}

// One line on standard error that starts with "quern: " and has every part; nothing on standard output.
inline void expect_refused(const ProgramResult& result, int status, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("quern: ")) << result.err;
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  for (const std::string& part : parts) {
    EXPECT_NE(result.err.find(part), std::string::npos) << "no \"" << part << "\" in: " << result.err;
  }
}

}  // namespace quern::test
