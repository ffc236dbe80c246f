#include "passes/pass_manager.h"

#include "tests/passes/pass_test.h"
#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

using namespace quern::passes;

// Removes one Relu a run.
class OneRelu : public Pass {
 public:
  OneRelu() : Pass("one-relu", "remove the first Relu") {}
  PassReport run(Graph& graph, PassContext&) override {
    for (Node* node : graph.nodes()) {
      if (!node->is("Relu")) continue;
      Rewriter rewriter(graph);
      rewriter.replace(node->output(), node->input(0));
      rewriter.commit();
      return {.changes = 1, .notes = {"gone"}};
    }
    return {};
  }
};

// Declares an integer output of Relu to be float: the verifier must notice.
class Breaker : public Pass {
 public:
  Breaker() : Pass("breaker", "break the graph") {}
  PassReport run(Graph& graph, PassContext&) override {
    Rewriter rewriter(graph);
    rewriter.set_type(graph.outputs()[0].value, i64({2, 2}));
    rewriter.commit();
    return {.changes = 1};
  }
};

class Thrower : public Pass {
 public:
  Thrower() : Pass("thrower", "throw") {}
  PassReport run(Graph&, PassContext&) override { throw_error(ErrorCode::InvalidModel, "no good"); }
};

class PassManagerTest : public PassTest {
 protected:
  PassManagerTest() {
    registry_.add<OneRelu>();
    registry_.add<Breaker>();
    registry_.add<Thrower>();
    build([](Rewriter& r) {
      Value* x = r.add_input("x", f32({2}));
      Node* last = r.add_node({.op = "Neg", .inputs = {x}});
      for (int i = 0; i < 5; ++i) last = r.add_node({.op = "Relu", .inputs = {last->output()}});
      r.add_output(r.add_node({.op = "Neg", .inputs = {last->output()}})->output(), "y");
    });
  }
  PipelineReport run_steps(std::vector<RecipeStep> steps, const PipelineHooks& hooks = {}) {
    PassContext context;
    return run_recipe({.name = "t", .steps = std::move(steps)}, graph(), context, hooks, registry_);
  }
  PassRegistry registry_;
};

TEST_F(PassManagerTest, RunsStepsInOrderAndCallsTheHooks) {
  std::vector<std::string> seen;
  PipelineHooks hooks;
  hooks.before_pass = [&](const std::string& pass, size_t step, size_t steps) {
    seen.push_back(concat(pass, " ", step, "/", steps));
  };
  hooks.after_pass = [&](const Graph& graph, const PassRun& run) {
    seen.push_back(concat(run.pass, " ", run.report.changes, " ", graph.nodes().size()));
  };
  const PipelineReport report = run_steps({{.pass = "one-relu"}, {.pass = "one-relu"}}, hooks);
  EXPECT_EQ(seen, (std::vector<std::string>{"one-relu 0/2", "one-relu 1 6", "one-relu 1/2", "one-relu 1 5"}));
  EXPECT_EQ(report.changes(), 2);
  EXPECT_EQ(report.to_json()["passes"][0]["notes"][0], "gone");
}

TEST_F(PassManagerTest, RepeatsAGroupUntilNothingChanges) {
  const PipelineReport report = run_steps({{.repeat = {{.pass = "one-relu"}}, .max_rounds = 10}});
  EXPECT_EQ(report.runs.size(), 6u);  // five removals, one round that finds nothing
  EXPECT_TRUE(report.unfinished_groups.empty());
  expect_ops({"Neg", "Neg"});
}

TEST_F(PassManagerTest, StopsAGroupAtItsBoundAndSaysSo) {
  const PipelineReport report =
      run_steps({{.repeat = {{.pass = "one-relu"}}, .max_rounds = 3, .name = "relus"}});
  EXPECT_EQ(report.runs.size(), 3u);
  EXPECT_EQ(report.unfinished_groups, std::vector<std::string>{"relus"});
}

TEST_F(PassManagerTest, NamesTheGuiltyPass) {
  EXPECT_QUERN_ERROR(run_steps({{.pass = "one-relu"}, {.pass = "breaker"}}), ErrorCode::Internal,
                     "pass 'breaker'", "Neg");
}

TEST_F(PassManagerTest, AnErrorOfAPassKeepsItsCodeAndNamesThePass) {
  EXPECT_QUERN_ERROR(run_steps({{.pass = "thrower"}}), ErrorCode::InvalidModel, "no good",
                     "running pass 'thrower'");
}

}  // namespace
}  // namespace quern::test
