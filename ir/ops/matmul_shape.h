// The shape of a batched matrix product, which operators of several domains share.
#pragma once

#include "ir/shape_inference.h"

namespace quern {

// As numpy.matmul: batch dimensions broadcast, vectors gain and lose a dimension. Nothing where a shape is
// unknown; fails, naming the node, where they do not multiply.
std::optional<SymShape> matmul_shape(const InferContext& context, const std::optional<SymShape>& a,
                                     const std::optional<SymShape>& b);

}  // namespace quern
