#include "ir/attribute_types.h"

#include <gtest/gtest.h>

#include "ir/rewriter.h"
#include "ir/schema.h"
#include "tests/support/expect_error.h"

namespace quern {
namespace {

// A node of that operator on one input, committed.
void build(const std::string& op, std::string_view domain, Attributes attributes, int opset = 0) {
  Graph graph;
  Rewriter rewriter(graph);
  Value* x = rewriter.add_input("x", {DType::F32, SymShape{2, 3}});
  Node* node = rewriter.add_node({.op = op,
                                  .domain = std::string(domain),
                                  .opset = opset,
                                  .name = "n",
                                  .inputs = {x},
                                  .attributes = std::move(attributes)});
  rewriter.add_output(node->output(), "y");
  rewriter.commit();
}

TEST(AttributeTypes, AnAttributeOfAnotherTypeIsRefusedWithBothTypes) {
  EXPECT_QUERN_ERROR(build("Softmax", kOnnxDomain, {{"axis", 1.0F}}), ErrorCode::InvalidModel,
                     "'n' (Softmax)", "'axis' is a float", "takes an int");
  EXPECT_QUERN_ERROR(build("LeakyRelu", kOnnxDomain, {{"alpha", int64_t{1}}}), ErrorCode::InvalidModel,
                     "'n' (LeakyRelu)", "'alpha' is an int", "takes a float");
  EXPECT_QUERN_ERROR(build("Transpose", kOnnxDomain, {{"perm", std::vector<float>{1, 0}}}),
                     ErrorCode::InvalidModel, "'perm' is a list of floats", "takes a list of ints");
  EXPECT_QUERN_ERROR(build("Gelu", kOnnxDomain, {{"approximate", int64_t{0}}}), ErrorCode::InvalidModel,
                     "'approximate' is an int", "takes a string");
  EXPECT_QUERN_ERROR(build("QuickGelu", kMicrosoftDomain, {{"alpha", std::string("1")}}),
                     ErrorCode::InvalidModel, "'alpha' is a string", "takes a float");
  EXPECT_QUERN_ERROR(build("QuantizeWeight", kQuernDomain, {{"clip", 0.5F}}), ErrorCode::InvalidModel,
                     "'clip' is a float", "takes a string");
}

TEST(AttributeTypes, RightOnesAndUnknownOnesPass) {
  EXPECT_NO_THROW(build("Softmax", kOnnxDomain, {{"axis", int64_t{1}}, {"made_up", 1.0F}}));
  EXPECT_NO_THROW(build("Transpose", kOnnxDomain, {{"perm", std::vector<int64_t>{1, 0}}}));
  EXPECT_NO_THROW(build("Mine", "my.domain", {{"axis", 1.0F}}, 1));
  // Before version 6 the type was named.
  EXPECT_NO_THROW(build("Dropout", kOnnxDomain, {{"ratio", 0.5F}, {"is_test", int64_t{1}}}, 6));
}

}  // namespace
}  // namespace quern
