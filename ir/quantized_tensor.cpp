#include "ir/quantized_tensor.h"

namespace quern {
namespace {

// Maps an element of the codes to the element of the scales that serves it.
class ScaleIndex {
 public:
  ScaleIndex(const Shape& shape, const QuantScheme& scheme) : scheme_(scheme) {
    if (scheme.granularity == QuantScheme::Granularity::Tensor) return;
    const auto axis = static_cast<size_t>(scheme.axis);
    for (size_t i = axis + 1; i < shape.size(); ++i) inner_ *= shape[i];
    length_ = shape[axis];
    if (scheme.granularity == QuantScheme::Granularity::Group) {
      groups_ = (length_ + scheme.group_size - 1) / scheme.group_size;
    }
  }

  int64_t operator()(int64_t element) const {
    switch (scheme_.granularity) {
      case QuantScheme::Granularity::Tensor:
        return 0;
      case QuantScheme::Granularity::Channel:
        return element / inner_ % length_;
      case QuantScheme::Granularity::Group: {
        const int64_t inner = element % inner_;
        const int64_t position = element / inner_ % length_;
        const int64_t outer = element / inner_ / length_;
        return (outer * groups_ + position / scheme_.group_size) * inner_ + inner;
      }
    }
    return 0;
  }

 private:
  QuantScheme scheme_;
  int64_t inner_ = 1;
  int64_t length_ = 1;
  int64_t groups_ = 1;
};

Shape scale_shape(const Shape& shape, const QuantScheme& scheme) {
  const auto axis = static_cast<size_t>(scheme.axis);
  switch (scheme.granularity) {
    case QuantScheme::Granularity::Tensor:
      return {};
    case QuantScheme::Granularity::Channel:
      return {shape[axis]};
    case QuantScheme::Granularity::Group: {
      Shape out = shape;
      out[axis] = (shape[axis] + scheme.group_size - 1) / scheme.group_size;
      return out;
    }
  }
  return {};
}

}  // namespace

std::string to_string(const QuantScheme& scheme) {
  std::string text;
  if (is_integer(scheme.code)) {
    text = concat(is_signed_integer(scheme.code) ? "int" : "uint", scheme.code_bits());
  } else {
    text = to_string(scheme.code);
  }
  text += scheme.symmetric ? " symmetric" : " asymmetric";
  switch (scheme.granularity) {
    case QuantScheme::Granularity::Tensor:
      return text + " per tensor";
    case QuantScheme::Granularity::Channel:
      return text + " per channel";
    case QuantScheme::Granularity::Group:
      return text + concat(" per group of ", scheme.group_size);
  }
  return text;
}

void QuantizedTensor::check() const {
  const auto rank = static_cast<int>(codes.shape().size());
  if (codes.dtype() != scheme.code) {
    throw_error(ErrorCode::InvalidModel, "quantized codes are ", to_string(codes.dtype()),
                ", the scheme says ", to_string(scheme.code));
  }
  if (scheme.bits != 0 &&
      (!is_integer(scheme.code) || scheme.bits < 2 || scheme.bits > bit_width(scheme.code))) {
    throw_error(ErrorCode::InvalidModel, "codes of ", scheme.bits, " bits stored as ",
                to_string(scheme.code));
  }
  if (scheme.granularity != QuantScheme::Granularity::Tensor && (scheme.axis < 0 || scheme.axis >= rank)) {
    throw_error(ErrorCode::InvalidModel, "quantization axis ", scheme.axis, " of a tensor of rank ", rank);
  }
  if (scheme.granularity == QuantScheme::Granularity::Group && scheme.group_size <= 0) {
    throw_error(ErrorCode::InvalidModel, "quantization group size ", scheme.group_size);
  }
  const Shape expected = scale_shape(codes.shape(), scheme);
  if (scales.shape() != expected) {
    throw_error(ErrorCode::InvalidModel, "scales have shape ", to_string(scales.shape()), ", expected ",
                to_string(expected));
  }
  if (scheme.symmetric == zero_points.defined()) {
    throw_error(ErrorCode::InvalidModel, scheme.symmetric ? "a symmetric scheme has zero points"
                                                          : "an asymmetric scheme lacks zero points");
  }
  if (zero_points.defined() && (zero_points.shape() != expected || zero_points.dtype() != scheme.code)) {
    throw_error(ErrorCode::InvalidModel, "zero points are ", to_string(zero_points.dtype()), " ",
                to_string(zero_points.shape()), ", expected ", to_string(scheme.code), " ",
                to_string(expected));
  }
}

Tensor dequantize(const QuantizedTensor& tensor) {
  tensor.check();
  const ScaleIndex scale_index(tensor.shape(), tensor.scheme);
  const bool is_unsigned = is_integer(tensor.scheme.code) && !is_signed_integer(tensor.scheme.code);
  const double middle = is_unsigned ? static_cast<double>(1 << (tensor.scheme.code_bits() - 1)) : 0.0;
  Tensor out = Tensor::zeros(DType::F32, tensor.shape());
  const std::span<float> values = out.mutable_data<float>();
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t s = scale_index(i);
    const double zero = tensor.zero_points.defined() ? tensor.zero_points.at(s) : middle;
    values[static_cast<size_t>(i)] =
        static_cast<float>(tensor.codes.at(i) - zero) * static_cast<float>(tensor.scales.at(s));
  }
  return out;
}

}  // namespace quern
