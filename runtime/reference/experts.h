// Reference kernels of mixtures of experts.
#pragma once

#include "runtime/kernel_table.h"

namespace quern::runtime::reference {

// ai.quern's RouteExperts, ExpertRows and CombineExperts.
void register_experts(KernelTable& table);

}  // namespace quern::runtime::reference
