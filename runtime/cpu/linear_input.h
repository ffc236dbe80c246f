// What a Linear's input becomes for the kernels.
#pragma once

#include "ir/activation_scheme.h"
#include "runtime/cpu/activations.h"

namespace quern::cpu {

// The format of an input rounded by `scheme`; of one that no scheme rounds, what `usual` makes of it.
ActivationFormat input_format(const ActivationScheme& scheme, const PackedSpec& weight, ActivationMode usual);

}  // namespace quern::cpu
