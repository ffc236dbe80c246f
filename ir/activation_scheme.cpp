#include "ir/activation_scheme.h"

#include <cmath>

#include "ir/error.h"

namespace quern {

ActivationScheme activation_scheme(const Node& node) {
  using Kind = ActivationScheme::Kind;
  const std::string text = node.string_attribute("activations", "");
  if (node.has_attribute(kStaticActivations)) {
    throw_error(
        ErrorCode::InvalidArgument, describe(node),
        ": its input is to be rounded by what calibration shows, and nothing has calibrated it; run the "
        "pass static-activations first");
  }
  if (text.empty()) return {};
  if (text == "int8") return {.kind = Kind::Group};
  if (text == "int8-token") return {.kind = Kind::Token};
  if (text == "uint8-token") return {.kind = Kind::TokenAsymmetric};
  if (text != "static") {
    throw_error(ErrorCode::Unsupported, describe(node), ": activations as '", text,
                "'; int8, int8-token, uint8-token and static are known");
  }
  const ActivationScheme scheme{.kind = Kind::Static,
                                .scale = node.float_attribute("activation_scale", 0.0F),
                                .lowest = node.int_attribute("activation_low", -127),
                                .highest = node.int_attribute("activation_high", 127)};
  if (!(scheme.scale > 0) || !std::isfinite(scheme.scale) || scheme.lowest < -255 || scheme.lowest > 0 ||
      scheme.highest < 0 || scheme.highest > 255) {
    throw_error(ErrorCode::InvalidModel, describe(node), ": a static scale of ", scheme.scale, " for codes ",
                scheme.lowest, " to ", scheme.highest,
                "; a positive scale and codes from at least -255 to at most 255 were expected");
  }
  return scheme;
}

Attributes to_attributes(const ActivationScheme& scheme) {
  using Kind = ActivationScheme::Kind;
  switch (scheme.kind) {
    case Kind::None:
      return {};
    case Kind::Group:
      return {{"activations", std::string("int8")}};
    case Kind::Token:
      return {{"activations", std::string("int8-token")}};
    case Kind::TokenAsymmetric:
      return {{"activations", std::string("uint8-token")}};
    case Kind::Static:
      return {{"activations", std::string("static")},
              {"activation_scale", scheme.scale},
              {"activation_low", scheme.lowest},
              {"activation_high", scheme.highest}};
  }
  return {};
}

}  // namespace quern
