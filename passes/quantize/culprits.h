// Which weights' quantization a miss of a threshold is down to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calibrate/samples.h"
#include "ir/graph.h"

namespace quern::passes {

struct CulpritOptions {
  double max_kl = -1;                   // mean, nats; below 0: no limit
  double max_perplexity_increase = -1;  // a share; below 0: no limit
  int threads = 0;
  std::function<void(const std::string& what, double fraction)> progress = {};
};

struct Culprits {
  bool met_already = false;        // nothing has to be restored
  bool found = false;              // restoring `names` meets the limits
  std::vector<std::string> names;  // by descending gain of each alone
  std::vector<std::string> nodes;  // that read them, one each
  double kl = 0;                   // with them restored
  double perplexity_increase = 0;
};

// The weights of `candidate` whose restoration to those of `reference` brings it within the limits, as few as
// a greedy search finds: each weight is restored alone, then the best ones together until the limits are met,
// then those that turn out not to be needed are left out again. Both are canonical decoders with constant
// weights; weights are matched by name. Costs a run over the samples for each weight, and some more. Throws
// Error{InvalidArgument} without a limit, or where no name matches.
Culprits find_culprits(const Graph& reference, const Graph& candidate, const calibrate::Samples& samples,
                       const CulpritOptions& options);

}  // namespace quern::passes
