// What a pass may take for a property of the model, and what it may not.
#include "passes/model_failure.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "passes/canonicalize/mask_kind.h"
#include "tests/passes/pass_test.h"

namespace quern::passes {
namespace {

using test::f32;
using test::i64;
using test::PassTest;
using test::sym;

TEST(ModelFailure, PassesOnWhatIsNotAboutTheModel) {
  const auto handled = [](const Error& thrown) {
    try {
      try {
        throw thrown;
      } catch (const Error& error) {
        rethrow_unless_of_model(error);
        return true;
      }
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(handled(Error(ErrorCode::InvalidModel, "a")));
  EXPECT_TRUE(handled(Error(ErrorCode::Unsupported, "a")));
  EXPECT_FALSE(handled(Error(ErrorCode::OutOfMemory, "a")));
  EXPECT_FALSE(handled(Error(ErrorCode::Internal, "a")));
  EXPECT_FALSE(handled(Error(ErrorCode::Io, "a")));
}

TEST(ModelFailure, ATensorBeyondTheLimitIsTheModels) {
  try {
    try {
      throw runtime::LimitExceeded("a");
    } catch (Error& error) {
      error.add_context("evaluating");
      throw;
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory);
    EXPECT_NO_THROW(rethrow_unless_of_model(error));
  }
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Runs body in a process that may have `bytes` of heap: 0 if it ends, 2 if it says that there is no memory, 1
// for other errors.
template <class Body>
int run_with_memory(rlim_t bytes, const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit = {bytes, bytes};
    int status = ::setrlimit(RLIMIT_DATA, &limit) == 0 ? 0 : 3;
    try {
      if (status == 0) body();
    } catch (const Error& error) {
      status = error.code() == ErrorCode::OutOfMemory ? 2 : 1;
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A mask of zeros, by way of a tensor of 400 MB.
Value* costly_zero(Rewriter& r) {
  Value* size = r.add_constant(Tensor::from<int64_t>({1}, {100'000'000}), "size");
  Value* large = r.add_node({.op = "ConstantOfShape", .inputs = {size}})->output();
  return r.add_node({.op = "ReduceMax", .inputs = {large}, .attributes = {{"keepdims", int64_t{0}}}})
      ->output();
}

using MaskMemoryTest = PassTest;

// Recognition must not depend on how much memory there is.
TEST_F(MaskMemoryTest, ALackOfMemoryIsNoPropertyOfAMask) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer needs memory of its own";
  Value* mask = nullptr;
  build([&](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("batch"), sym("sequence")}));
    mask = costly_zero(r);
    r.add_output(r.add_node({.op = "Add", .inputs = {x, mask}})->output(), "y");
  });
  const auto read = [&] {
    const Prober prober(graph(), {"batch", "sequence", "past"});
    MaskReader(prober, false).read(mask, true, 1);
  };
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  EXPECT_EQ(run_with_memory(rlim_t{128} << 20, read), 2);
}

TEST_F(MaskMemoryTest, ALackOfMemoryIsNoReasonNotToFold) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer needs memory of its own";
  build([&](Rewriter& r) {
    Value* x = r.add_input("x", f32({4}));
    r.add_output(r.add_node({.op = "Add", .inputs = {x, costly_zero(r)}})->output(), "y");
  });
  const auto fold = [&] {
    const std::unique_ptr<Pass> pass =
        PassRegistry::instance().create("constant-folding", {{"max-bytes", int64_t{1} << 30}});
    PassContext context;
    pass->run(graph(), context);
  };
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  EXPECT_EQ(run_with_memory(rlim_t{128} << 20, fold), 2);
}

}  // namespace
}  // namespace quern::passes
