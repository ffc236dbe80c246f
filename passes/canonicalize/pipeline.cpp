#include "passes/canonicalize/pipeline.h"

namespace quern::passes {
namespace {

RecipeStep group(std::string name, const std::vector<const char*>& passes) {
  RecipeStep step{.name = std::move(name)};
  for (const char* pass : passes) step.repeat.push_back({.pass = pass});
  return step;
}

}  // namespace

std::vector<RecipeStep> canonicalization_steps() {
  return {
      {.pass = "inline-branches"},
      {.pass = "name-dimensions"},
      {.pass = "adopt-quantized"},
      group("cleanup",
            {"constant-folding", "shape-arithmetic", "no-ops", "common-subexpressions", "dead-code"}),
      {.pass = "fuse-norm"},
      {.pass = "fuse-activation"},
      {.pass = "fuse-linear"},
      {.pass = "fuse-embedding"},
      {.pass = "fuse-convolution"},
      {.pass = "fold-batch-norm"},
      {.pass = "fuse-attention"},
      {.pass = "fuse-experts"},
      {.pass = "dead-code"},
      {.pass = "to-decoder"},
      {.pass = "fuse-linear"},
      {.pass = "fuse-skip-norm"},
      group("cleanup", {"constant-folding", "no-ops", "common-subexpressions", "dead-code"}),
  };
}

}  // namespace quern::passes
