#include "runtime/cpu/linear_input.h"

namespace quern::cpu {
namespace {

ActivationRange range_of(const ActivationScheme& scheme) {
  using Kind = ActivationScheme::Kind;
  switch (scheme.kind) {
    case Kind::None:
    case Kind::Group:
      return {};
    case Kind::Token:
      return {.kind = ActivationRange::Kind::Row};
    case Kind::TokenAsymmetric:
      return {.kind = ActivationRange::Kind::RowAsymmetric};
    case Kind::Static:
      return {.kind = ActivationRange::Kind::Fixed,
              .scale = scheme.scale,
              .lowest = static_cast<int32_t>(scheme.lowest),
              .highest = static_cast<int32_t>(scheme.highest)};
  }
  return {};
}

}  // namespace

ActivationFormat input_format(const ActivationScheme& scheme, const PackedSpec& weight,
                              ActivationMode usual) {
  if (scheme.kind == ActivationScheme::Kind::None) return activation_format(weight, usual);
  return activation_format(weight, ActivationMode::A8, active_isa(), range_of(scheme));
}

}  // namespace quern::cpu
