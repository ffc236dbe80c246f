// How a decoder keeps keys and values.
#pragma once

#include <string>
#include <vector>

#include "ir/dtype.h"
#include "passes/pass.h"

namespace quern::passes {

// Before: ai.quern.CachedAttention(q, k, v, ...)
// After:  the same, the graph's metadata "cache" set to what its sessions keep keys and values as; for
//         integers with key_scales, the root mean square of each feature of the keys over the samples, or,
//         where there are none, over tokens drawn at random: channels of large keys are large whatever the
//         text.
// If:     the graph is a canonical decoder; Error{InvalidArgument} otherwise.
class KvCachePass : public Pass {
 public:
  KvCachePass();
  PassReport run(Graph& graph, PassContext& context) override;

  static const std::vector<std::string>& choices();  // "fp32", "fp16", "int8", "int4"
  static DType dtype_of(const std::string& choice);

 private:
  std::string kv_ = "fp32";
};

}  // namespace quern::passes
