// EXPECT_QUERN_ERROR(statement, code, part...): `statement` throws an Error of that code whose text has every
// part.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ir/error.h"

namespace quern::test {

template <class Body>
testing::AssertionResult throws_error(Body&& body, ErrorCode code, const std::vector<std::string>& parts) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != code) {
      return testing::AssertionFailure() << "expected code " << to_string(code) << ", got "
                                         << to_string(error.code()) << ": " << error.what();
    }
    const std::string text = error.what();
    for (const std::string& part : parts) {
      if (text.find(part) == std::string::npos) {
        return testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
      }
    }
    if (text.find('\n') != std::string::npos) {
      return testing::AssertionFailure() << "more than one line: " << text;
    }
    return testing::AssertionSuccess();
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << "not a quern::Error: " << error.what();
  }
  return testing::AssertionFailure() << "nothing was thrown";
}

#define EXPECT_QUERN_ERROR(statement, code, ...)                                       \
  EXPECT_TRUE(::quern::test::throws_error([&] { static_cast<void>(statement); }, code, \
                                          std::vector<std::string>{__VA_ARGS__}))

}  // namespace quern::test
