#include "runtime/reference/strided.h"

#include <algorithm>
#include <cstring>

namespace quern::runtime::reference {
namespace {

// Where the elements of several tensors lie, counted on from one to the next.
class Parts {
 public:
  explicit Parts(const std::vector<Tensor>& parts) : parts_(parts) {
    for (const Tensor& part : parts) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + part.size());
  }

  std::pair<const Tensor*, int64_t> at(int64_t i) const {
    const auto part = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
    return {&parts_[part], part == 0 ? i : i - ends_[part - 1]};
  }
  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

 private:
  const std::vector<Tensor>& parts_;
  std::vector<int64_t> ends_;
};

template <class T>
void copy_whole_elements(const Parts& parts, const std::vector<int64_t>& sources, std::byte* out) {
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto [part, element] = parts.at(sources[i]);
    std::memcpy(out + i * sizeof(T), part->bytes() + element * static_cast<int64_t>(sizeof(T)), sizeof(T));
  }
}

}  // namespace

Shape broadcast_strides(const Shape& from, const Shape& to) {
  const Shape own = strides_of(from);
  Shape strides(to.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[from.size() - 1 - i] != 1) strides[to.size() - 1 - i] = own[from.size() - 1 - i];
  }
  return strides;
}

Tensor strided_copy(const KernelContext& context, const Tensor& x, const Shape& shape, const Shape& strides,
                    int64_t offset) {
  std::vector<int64_t> sources;
  sources.reserve(static_cast<size_t>(context.checked_count(x.dtype(), shape)));
  for_each_offset<1>(shape, {strides}, [&](int64_t o) { sources.push_back(offset + o); });
  return gather_elements(context, {x}, shape, sources);
}

Tensor gather_elements(const KernelContext& context, const std::vector<Tensor>& parts, const Shape& shape,
                       const std::vector<int64_t>& sources) {
  const DType dtype = parts.front().dtype();
  for (const Tensor& part : parts) {
    if (part.dtype() != dtype) {
      context.fail("element types ", to_string(dtype), " and ", to_string(part.dtype()), " do not agree");
    }
  }
  const Parts all(parts);
  for (const int64_t source : sources) {
    if (source < 0 || source >= all.size()) context.fail("an index points outside the data");
  }
  if (dtype == DType::String) {
    std::vector<std::string> strings;
    for (const int64_t source : sources) {
      const auto [part, element] = all.at(source);
      strings.push_back(part->strings()[static_cast<size_t>(element)]);
    }
    return Tensor::from_strings(shape, std::move(strings));
  }
  Tensor out = context.make(dtype, shape);
  if (sources.empty()) return out;
  switch (bit_width(dtype)) {
    case 8:
      copy_whole_elements<uint8_t>(all, sources, out.mutable_bytes());
      break;
    case 16:
      copy_whole_elements<uint16_t>(all, sources, out.mutable_bytes());
      break;
    case 32:
      copy_whole_elements<uint32_t>(all, sources, out.mutable_bytes());
      break;
    case 64:
      copy_whole_elements<uint64_t>(all, sources, out.mutable_bytes());
      break;
    default:
      for (size_t i = 0; i < sources.size(); ++i) {
        const auto [part, element] = all.at(sources[i]);
        if (dtype == DType::F4E2M1) {
          out.set(static_cast<int64_t>(i), part->at(element));
        } else {
          out.set_int(static_cast<int64_t>(i), part->int_at(element));
        }
      }
  }
  return out;
}

Tensor concat_tensors(const KernelContext& context, const std::vector<Tensor>& parts, int64_t axis) {
  const auto at = static_cast<size_t>(axis);
  Shape shape = parts.front().shape();
  if (at >= shape.size()) context.fail("a tensor of shape ", to_string(shape), " has no axis ", axis);
  shape[at] = 0;
  for (const Tensor& part : parts) {
    Shape rest = part.shape();
    if (rest.size() != shape.size()) context.fail("tensors of different ranks cannot be joined");
    const int64_t length = rest[at];
    rest[at] = shape[at];
    if (rest != shape) {
      context.fail("a tensor of shape ", to_string(part.shape()), " does not fit along axis ", axis, " to ",
                   to_string(parts.front().shape()));
    }
    shape[at] += length;
  }
  std::vector<int64_t> sources;
  sources.reserve(static_cast<size_t>(context.checked_count(parts.front().dtype(), shape)));
  const int64_t outer = element_count(Shape(shape.begin(), shape.begin() + axis));
  const int64_t inner = element_count(Shape(shape.begin() + axis + 1, shape.end()));
  for (int64_t o = 0; o < outer; ++o) {
    int64_t base = 0;
    for (const Tensor& part : parts) {
      const int64_t run = part.shape()[at] * inner;
      for (int64_t i = 0; i < run; ++i) sources.push_back(base + o * run + i);
      base += part.size();
    }
  }
  return gather_elements(context, parts, shape, sources);
}

Tensor slice_axis(const KernelContext& context, const Tensor& x, size_t axis, int64_t begin, int64_t length) {
  Shape shape = x.shape();
  shape[axis] = length;
  const Shape strides = strides_of(x.shape());
  return strided_copy(context, x, shape, strides, begin * strides[axis]);
}

}  // namespace quern::runtime::reference
