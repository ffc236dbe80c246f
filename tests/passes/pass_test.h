// The fixture of all pass tests: give it a graph and a pass; verifying, idempotence and unchanged numbers are
// checked on their own.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/rewriter.h"
#include "ir/verifier.h"
#include "passes/registry.h"
#include "runtime/interpreter.h"
#include "tests/passes/random_inputs.h"

namespace quern::test {

inline ValueType f32(SymShape shape) {
  return {DType::F32, std::move(shape)};
}
inline ValueType i64(SymShape shape) {
  return {DType::I64, std::move(shape)};
}
inline Dim sym(std::string name) {
  return Dim::symbol(std::move(name));
}

//   TEST_F(MyPassTest, FoldsBoth) {
//     build([](Rewriter& r) { Value* x = r.add_input("x", f32({sym("n"), 4})); ... r.add_output(y, "y"); });
//     expect_fires("my-pass");
//     expect_ops({"Add", "Relu"});
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
  void use(std::unique_ptr<Graph> graph) {
    graph_ = std::move(graph);
    verify(*graph_);
  }
  Graph& graph() { return *graph_; }

  // Runs the pass: it must report changes, leave a graph that verifies and computes what it did, and report
  // none when it is run again. The report of the first run.
  passes::PassReport expect_fires(const std::string& pass, const nlohmann::json& options = nullptr);

  // Runs the pass: it must report no change and make none. The report, with the reasons.
  passes::PassReport expect_no_match(const std::string& pass, const nlohmann::json& options = nullptr);

  // The operators of the main graph in order.
  std::vector<std::string> ops() const;
  void expect_ops(const std::vector<std::string>& expected) {
    EXPECT_EQ(ops(), expected) << to_text(graph());
  }
  // Compares with a whole graph as to_text() prints it.
  void expect_text(const std::string& expected) { EXPECT_EQ(to_text(graph()), expected); }
  // Whether some failure names a reason with that text.
  static bool has_reason(const passes::PassReport& report, const std::string& text);

  // Once, with every reason collected; verified afterwards.
  passes::PassReport run(const std::string& pass, const nlohmann::json& options = nullptr);

  // The outputs for the random inputs. Override for graphs that the interpreter alone can't run.
  virtual runtime::NamedValues evaluate();

  // How inputs are made, and how far results may differ: |a - b| <= absolute + relative * |a|.
  RandomInputs random_;
  double absolute_ = 1e-5;
  double relative_ = 1e-5;
  // Off for graphs that can't be run: say why where it is set.
  bool numeric_ = true;

 private:
  std::unique_ptr<Graph> graph_;
};

inline passes::PassReport PassTest::run(const std::string& name, const nlohmann::json& options) {
  const std::unique_ptr<passes::Pass> pass = passes::PassRegistry::instance().create(name, options);
  passes::PassContext context;
  context.explain = true;
  const passes::PassReport report = pass->run(graph(), context);
  verify(graph());
  return report;
}

inline runtime::NamedValues PassTest::evaluate() {
  return runtime::Interpreter(graph()).run(random_.for_graph(graph()));
}

inline passes::PassReport PassTest::expect_fires(const std::string& pass, const nlohmann::json& options) {
  const std::string before = to_text(graph());
  runtime::NamedValues wanted;
  if (numeric_) wanted = evaluate();
  const passes::PassReport report = run(pass, options);
  EXPECT_GT(report.changes, 0) << "the pass did not fire on\n" << before;
  EXPECT_NE(to_text(graph()), before) << "changes were reported, but there are none";
  const std::string after = to_text(graph());
  if (numeric_) expect_close(wanted, evaluate(), absolute_, relative_);
  const passes::PassReport again = run(pass, options);
  EXPECT_EQ(again.changes, 0) << "not idempotent on\n" << after;
  EXPECT_EQ(to_text(graph()), after) << "not idempotent";
  return report;
}

inline passes::PassReport PassTest::expect_no_match(const std::string& pass, const nlohmann::json& options) {
  const std::string before = to_text(graph());
  const passes::PassReport report = run(pass, options);
  EXPECT_EQ(report.changes, 0) << "the pass fired";
  EXPECT_EQ(to_text(graph()), before) << "the graph changed";
  return report;
}

inline std::vector<std::string> PassTest::ops() const {
  std::vector<std::string> result;
  for (const Node* node : graph_->nodes()) result.push_back(node->op());
  return result;
}

inline bool PassTest::has_reason(const passes::PassReport& report, const std::string& text) {
  for (const passes::MatchFailure& failure : report.failures) {
    if (failure.reason.find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace quern::test
