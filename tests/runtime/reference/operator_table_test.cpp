// Which operators there are: those of ai.onnx in the operator sets 7 to 25, by ONNX's own list.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "ir/schema.h"
#include "runtime/kernel_table.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

// Random numbers, where the same input must give the same output; files of images; regular expressions.
const std::set<std::string> kLeftOut{"Bernoulli",         "ImageDecoder",  "Multinomial",
                                     "RandomNormal",      "RandomUniform", "RandomNormalLike",
                                     "RandomUniformLike", "RegexFullMatch"};

TEST(OperatorTable, EveryVersionOfEveryOperatorHasAKernelAndASchema) {
  std::ifstream file(source_path("tests/runtime/reference/fixtures/operator_versions.txt"));
  std::string line;
  size_t operators = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string op;
    int version = 0;
    words >> op;
    ++operators;
    while (words >> version) {
      // An older version than 7 is the one that the operator set 7 has.
      const int opset = std::max(version, 7);
      const bool is_there = !runtime::KernelTable::instance().find("", op, opset).empty();
      EXPECT_EQ(is_there, !kLeftOut.contains(op)) << op << " " << version;
      if (is_there) {
        EXPECT_NE(SchemaTable::instance().find("", op, opset), nullptr) << op << " " << version;
      }
    }
  }
  EXPECT_GT(operators, 190u);
}

TEST(OperatorTable, EveryKernelHasASchemaAndTheOtherWayRound) {
  const runtime::KernelTable& kernels = runtime::KernelTable::instance();
  const SchemaTable& schemas = SchemaTable::instance();
  for (const auto& [domain, op] : kernels.operators()) {
    EXPECT_NE(schemas.find(domain, op, newest_opset(domain)), nullptr) << domain << " " << op;
  }
  for (const OpSchema* schema : schemas.all()) {
    // quern's own operators are steps of the decoder.
    if (schema->domain == kQuernDomain || kLeftOut.contains(schema->op)) continue;
    EXPECT_FALSE(kernels.find(schema->domain, schema->op, newest_opset(schema->domain)).empty())
        << schema->domain << " " << schema->op;
  }
}

}  // namespace
}  // namespace quern::test
