#include "ir/weight_ops.h"

#include <algorithm>

namespace quern {
namespace {

using Granularity = QuantScheme::Granularity;

std::string name_of(Granularity granularity) {
  switch (granularity) {
    case Granularity::Tensor:
      return "tensor";
    case Granularity::Channel:
      return "channel";
    case Granularity::Group:
      return "group";
  }
  return "?";
}

std::string name_of(SymmetricRange range) {
  switch (range) {
    case SymmetricRange::Restricted:
      return "restricted";
    case SymmetricRange::Full:
      return "full";
    case SymmetricRange::Best:
      return "best";
  }
  return "?";
}

std::string name_of(ScaleMethod method) {
  return to_string(method);
}

// The one of `all` that has the name of the attribute.
template <class T>
T named(const Node& node, const std::string& attribute, const std::string& fallback,
        std::initializer_list<T> all) {
  const std::string name = node.string_attribute(attribute, fallback);
  for (const T each : all) {
    if (name_of(each) == name) return each;
  }
  throw_error(ErrorCode::InvalidModel, describe(node), ": attribute '", attribute, "' is '", name, "'");
}

DType dtype_attribute(const Node& node, const std::string& attribute, const std::string& fallback) {
  return with_context(concat("reading attribute '", attribute, "' of ", describe(node)),
                      [&] { return dtype_from_string(node.string_attribute(attribute, fallback)); });
}

}  // namespace

Attributes to_attributes(const QuantizeOptions& options) {
  const QuantScheme& scheme = options.scheme;
  Attributes attributes = {{"code", std::string(to_string(scheme.code))},
                           {"symmetric", int64_t{scheme.symmetric}},
                           {"granularity", name_of(scheme.granularity)},
                           {"scales", std::string(to_string(options.scale_dtype))}};
  if (scheme.granularity == Granularity::Group) attributes["group_size"] = scheme.group_size;
  if (scheme.symmetric) attributes["range"] = name_of(options.range);
  // What is usual is not written down, so that the nodes of older recipes stay as they were.
  if (scheme.bits != 0) attributes["bits"] = int64_t{scheme.bits};
  if (options.method != ScaleMethod::Range) attributes["method"] = to_string(options.method);
  if (options.clip.kind != ClipKind::None) attributes["clip"] = to_string(options.clip);
  return attributes;
}

QuantizeOptions quantize_options(const Node& node) {
  QuantizeOptions options;
  QuantScheme& scheme = options.scheme;
  scheme.code = dtype_attribute(node, "code", "i8");
  scheme.symmetric = node.int_attribute("symmetric", 1) != 0;
  scheme.granularity =
      named(node, "granularity", "channel", {Granularity::Tensor, Granularity::Channel, Granularity::Group});
  scheme.axis = scheme.granularity == Granularity::Group ? 1 : 0;
  scheme.group_size = scheme.granularity == Granularity::Group ? node.int_attribute("group_size", 0) : 0;
  options.scale_dtype = dtype_attribute(node, "scales", "f32");
  options.range =
      named(node, "range", "best", {SymmetricRange::Restricted, SymmetricRange::Full, SymmetricRange::Best});
  options.method = named(node, "method", "rtn",
                         {ScaleMethod::Range, ScaleMethod::LeastSquares, ScaleMethod::HalfQuadratic});
  with_context("reading " + describe(node), [&] {
    scheme.bits = static_cast<int>(std::clamp<int64_t>(node.int_attribute("bits", 0), -1, 64));
    options.clip = parse_clip_rule(node.string_attribute("clip", "none"));
    check_quantizable(options);
  });
  return options;
}

}  // namespace quern
