// How a Linear rounds its input: the attribute "activations" and its companions (docs/canonical-graph.md).
#pragma once

#include <cstdint>
#include <string>

#include "ir/graph.h"

namespace quern {

// Of a Linear whose input's range is still to be seen, until static-activations (passes/quantize) has run.
inline constexpr const char* kStaticActivations = "static_activations";

struct ActivationScheme {
  enum class Kind {
    None,   // as it is
    Group,  // "int8": largest magnitude of each token, and of each group where the weight has groups
    Token,  // "int8-token": of each token
    TokenAsymmetric,  // "uint8-token": extremes of each token, by the formula of DynamicQuantizeLinear
    Static            // "static": the attributes activation_scale, activation_low, activation_high
  };
  Kind kind = Kind::None;
  // Of Static: code = clamp(round(x / scale), lowest, highest), zero points subtracted.
  float scale = 0;
  int64_t lowest = 0;
  int64_t highest = 0;

  bool operator==(const ActivationScheme&) const = default;
};

// Throws Error{InvalidArgument} naming the node where the range is still to be seen, Error{Unsupported} for
// an unknown kind, Error{InvalidModel} where a static scale is not positive and finite, or the limits are not
// some of -255 .. 0 and 0 .. 255.
ActivationScheme activation_scheme(const Node& node);

// The attributes of a Linear that say so; none for None.
Attributes to_attributes(const ActivationScheme& scheme);

}  // namespace quern
