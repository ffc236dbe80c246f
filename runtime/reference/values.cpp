#include "runtime/reference/values.h"

#include <algorithm>

#include "ir/float_types.h"

namespace quern::runtime::reference {
namespace {

template <class C, class T>
void widen(const Tensor& tensor, std::vector<C>& out) {
  const std::span<const T> data = tensor.data<T>();
  for (size_t i = 0; i < data.size(); ++i) out[i] = static_cast<C>(data[i]);
}

template <class C>
std::vector<C> widened(const Tensor& tensor) {
  std::vector<C> out(static_cast<size_t>(tensor.size()));
  switch (tensor.dtype()) {
    case DType::F32:
      widen<C, float>(tensor, out);
      break;
    case DType::F64:
      widen<C, double>(tensor, out);
      break;
    case DType::I64:
      widen<C, int64_t>(tensor, out);
      break;
    case DType::I32:
      widen<C, int32_t>(tensor, out);
      break;
    case DType::I16:
      widen<C, int16_t>(tensor, out);
      break;
    case DType::I8:
      widen<C, int8_t>(tensor, out);
      break;
    case DType::U64:
      widen<C, uint64_t>(tensor, out);
      break;
    case DType::U32:
      widen<C, uint32_t>(tensor, out);
      break;
    case DType::U16:
      widen<C, uint16_t>(tensor, out);
      break;
    case DType::U8:
    case DType::Bool:
      widen<C, uint8_t>(tensor, out);
      break;
    default:
      for (int64_t i = 0; i < tensor.size(); ++i) out[static_cast<size_t>(i)] = static_cast<C>(tensor.at(i));
  }
  return out;
}

template <class T, class C>
void narrow(std::span<const C> values, Tensor& out) {
  const std::span<T> data = out.mutable_data<T>();
  for (size_t i = 0; i < values.size(); ++i) data[i] = static_cast<T>(values[i]);
}

template <class C>
void narrow_all(std::span<const C> values, Tensor& out) {
  switch (out.dtype()) {
    case DType::F32:
      return narrow<float>(values, out);
    case DType::F64:
      return narrow<double>(values, out);
    case DType::F16:
    case DType::BF16: {
      const bool half = out.dtype() == DType::F16;
      const std::span<uint16_t> data = out.mutable_data<uint16_t>();
      for (size_t i = 0; i < values.size(); ++i) {
        const auto value = static_cast<float>(values[i]);
        data[i] = half ? f32_to_f16(value) : f32_to_bf16(value);
      }
      return;
    }
    default:
      break;
  }
  if constexpr (std::is_integral_v<C>) {
    switch (out.dtype()) {
      case DType::I64:
        return narrow<int64_t>(values, out);
      case DType::I32:
        return narrow<int32_t>(values, out);
      case DType::I16:
        return narrow<int16_t>(values, out);
      case DType::I8:
        return narrow<int8_t>(values, out);
      case DType::U64:
        return narrow<uint64_t>(values, out);
      case DType::U32:
        return narrow<uint32_t>(values, out);
      case DType::U16:
        return narrow<uint16_t>(values, out);
      case DType::U8:
        return narrow<uint8_t>(values, out);
      default:
        for (size_t i = 0; i < values.size(); ++i) {
          out.set_int(static_cast<int64_t>(i), static_cast<int64_t>(values[i]));
        }
    }
  } else {
    for (size_t i = 0; i < values.size(); ++i) out.set(static_cast<int64_t>(i), values[i]);
  }
}

}  // namespace

void refuse_element(int64_t i, size_t count) {
  throw_error(ErrorCode::InvalidModel, "the shapes do not fit: element ", i, " of a tensor of ", count);
}

template <class C>
Elements<C>::Elements(const Tensor& tensor) {
  if (tensor.dtype() == dtype_of<C>) {
    source_ = tensor;
    view_ = source_.data<C>();
  } else {
    copy_ = widened<C>(tensor);
    view_ = copy_;
  }
}

template <class C>
Tensor to_tensor(DType dtype, Shape shape, std::span<const C> values) {
  Tensor out = Tensor::zeros(dtype, std::move(shape));
  if (out.size() != static_cast<int64_t>(values.size())) {
    throw_error(ErrorCode::Internal, values.size(), " values for the shape ", to_string(out.shape()));
  }
  narrow_all(values, out);
  return out;
}

template class Elements<float>;
template class Elements<double>;
template class Elements<int64_t>;
template class Elements<uint64_t>;
template Tensor to_tensor(DType, Shape, std::span<const float>);
template Tensor to_tensor(DType, Shape, std::span<const double>);
template Tensor to_tensor(DType, Shape, std::span<const int64_t>);
template Tensor to_tensor(DType, Shape, std::span<const uint64_t>);

std::vector<int64_t> int_values(const Tensor& tensor) {
  return tensor.to_ints();
}

int64_t int_scalar(KernelContext& context, size_t input) {
  const Tensor& tensor = context.input(input);
  if (tensor.size() != 1 || !(is_integer(tensor.dtype()) || tensor.dtype() == DType::Bool)) {
    context.fail("input ", input, " is ", to_string(tensor.dtype()), " ", to_string(tensor.shape()),
                 ", expected one integer");
  }
  return tensor.int_at(0);
}

void check_same_dtype(const KernelContext& context, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype()) {
    context.fail("element types ", to_string(a.dtype()), " and ", to_string(b.dtype()), " do not agree");
  }
}

int64_t normalize_axis(const KernelContext& context, int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) context.fail("axis ", axis, " is outside a tensor of rank ", rank);
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> normalize_axes(const KernelContext& context, std::vector<int64_t> axes, int64_t rank) {
  for (int64_t& axis : axes) axis = normalize_axis(context, axis, rank);
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) context.fail("an axis is given twice");
  return axes;
}

std::optional<std::vector<int64_t>> ints_from(KernelContext& context, const std::string& attribute,
                                              size_t input) {
  if (context.has_input(input)) return int_values(context.input(input));
  if (context.node().has_attribute(attribute)) return context.node().ints_attribute(attribute, {});
  return std::nullopt;
}

}  // namespace quern::runtime::reference
