// The fixture of all pass tests: give it a graph and a pass; verifying, idempotence and unchanged numbers are
// checked on their own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "ir/graph.h"
#include "ir/rewriter.h"
#include "ir/verifier.h"
#include "passes/registry.h"

namespace quern::test {

inline ValueType f32(SymShape shape) {
  return {DType::F32, std::move(shape)};
}
inline ValueType i64(SymShape shape) {
  return {DType::I64, std::move(shape)};
}

//   TEST_F(MyPassTest, FoldsBoth) {
//     build([](Rewriter& r) { Value* x = r.add_input("x", f32({Dim::symbol("n"), 4})); ... r.add_output(y,
//     "y"); }); expect_fires("my-pass"); expect_ops({"Add", "Relu"});
//   }
class PassTest : public testing::Test {
 protected:
  // Fills the graph under test with one commit, and verifies it.
  template <class Body>
  Graph& build(Body&& body) {
    graph_ = std::make_unique<Graph>("test");
    Rewriter rewriter(*graph_);
    body(rewriter);
    rewriter.commit();
    verify(*graph_);
    return *graph_;
  }
  Graph& graph() { return *graph_; }

  // Runs the pass: it must report changes, leave a graph that verifies and computes what it did, and report
  // none when it is run again. The report of the first run.
  passes::PassReport expect_fires(const std::string& pass, const nlohmann::json& options = nullptr) {
    const std::string before = to_text(graph());
    const passes::PassReport report = run(pass, options);
    EXPECT_GT(report.changes, 0) << "the pass did not fire";
    EXPECT_NE(to_text(graph()), before) << "changes were reported, but there are none";
    const std::string after = to_text(graph());
    const passes::PassReport again = run(pass, options);
    EXPECT_EQ(again.changes, 0) << "not idempotent";
    EXPECT_EQ(to_text(graph()), after) << "not idempotent";
    return report;
  }

  // Runs the pass: it must report no change and make none. The report, with the reasons.
  passes::PassReport expect_no_match(const std::string& pass, const nlohmann::json& options = nullptr) {
    const std::string before = to_text(graph());
    const passes::PassReport report = run(pass, options);
    EXPECT_EQ(report.changes, 0) << "the pass fired";
    EXPECT_EQ(to_text(graph()), before) << "the graph changed";
    return report;
  }

  // The operators of the main graph in order.
  std::vector<std::string> ops() const {
    std::vector<std::string> result;
    for (const Node* node : graph_->nodes()) result.push_back(node->op());
    return result;
  }
  void expect_ops(const std::vector<std::string>& expected) {
    EXPECT_EQ(ops(), expected) << to_text(graph());
  }

  // Compares with a whole graph as to_text() prints it.
  void expect_text(const std::string& expected) { EXPECT_EQ(to_text(graph()), expected); }

  passes::PassReport run(const std::string& name, const nlohmann::json& options = nullptr) {
    const std::unique_ptr<passes::Pass> pass = passes::PassRegistry::instance().create(name, options);
    passes::PassContext context;
    context.explain = true;
    const passes::PassReport report = pass->run(graph(), context);
    verify(graph());
    return report;
  }

 private:
  std::unique_ptr<Graph> graph_;
};

}  // namespace quern::test
