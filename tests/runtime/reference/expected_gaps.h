// Cases of the backend suite that quern does not claim, and why.
#pragma once

#include <string>
#include <vector>

#include "tests/runtime/reference/backend_cases.h"

namespace quern::test {

// The reason why the case is left out; empty: it must pass.
std::string reason_for_gap(const BackendCase& test, const std::vector<std::string>& operators);

// The relative precision of the case's recorded outputs where these are rough; 0: that of their dtype.
double recorded_precision(const std::string& case_name);

}  // namespace quern::test
