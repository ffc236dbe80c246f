#include "passes/canonicalize/register.h"

#include "passes/canonicalize/adopt_quantized.h"
#include "passes/canonicalize/fold_batch_norm.h"
#include "passes/canonicalize/fuse_activation.h"
#include "passes/canonicalize/fuse_attention.h"
#include "passes/canonicalize/fuse_convolution.h"
#include "passes/canonicalize/fuse_experts.h"
#include "passes/canonicalize/fuse_linear.h"
#include "passes/canonicalize/fuse_norm.h"
#include "passes/canonicalize/fuse_skip_norm.h"
#include "passes/canonicalize/inline_branches.h"
#include "passes/canonicalize/name_dimensions.h"
#include "passes/canonicalize/to_decoder.h"

namespace quern::passes {

void register_canonicalize_passes(PassRegistry& registry) {
  registry.add<InlineBranches>();
  registry.add<AdoptQuantized>();
  registry.add<FuseNorm>();
  registry.add<FuseActivation>();
  registry.add<FuseLinear>();
  registry.add<FuseEmbedding>();
  registry.add<FuseConvolution>();
  registry.add<FoldBatchNorm>();
  registry.add<FuseAttention>();
  registry.add<FuseExperts>();
  registry.add<NameDimensions>();
  registry.add<ToDecoder>();
  registry.add<FuseSkipNorm>();
}

}  // namespace quern::passes
