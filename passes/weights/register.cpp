#include "passes/weights/register.h"

#include "passes/exits/insert_exit_heads.h"
#include "passes/quantize/balance_channels.h"
#include "passes/quantize/calibrate_weights.h"
#include "passes/quantize/kv_cache.h"
#include "passes/quantize/quantize_weights.h"
#include "passes/quantize/static_activations.h"
#include "passes/weights/materialize.h"
#include "passes/weights/pack_weights.h"
#include "passes/weights/tie_weights.h"

namespace quern::passes {

void register_weight_passes(PassRegistry& registry) {
  registry.add<InsertExitHeads>();
  registry.add<TieWeights>();
  registry.add<QuantizeWeights>();
  registry.add<BalanceChannels>();
  registry.add<CalibrateWeights>();
  registry.add<StaticActivations>();
  registry.add<PackWeights>();
  registry.add<KvCachePass>();
  registry.add<MaterializeWeights>();
}

}  // namespace quern::passes
