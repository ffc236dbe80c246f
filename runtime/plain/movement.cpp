// Transpose of four-byte elements.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "runtime/plain/register.h"
#include "runtime/reference/strided.h"

namespace quern::runtime::plain {
namespace {

// Rows of the output: copied whole where the last dimension stays the last, else gathered by its stride.
void run_transpose(KernelContext& context) {
  const Tensor& x = context.input(0);
  Shape perm = context.node().ints_attribute("perm", {});
  if (perm.empty()) {
    perm.resize(x.shape().size());
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  Shape sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  Shape all(x.shape().size());
  std::iota(all.begin(), all.end(), 0);
  if (x.rank() < 2 || sorted != all) return run_reference(context);
  const Shape strides = strides_of(x.shape());
  Shape shape, steps;
  for (const int64_t axis : perm) {
    shape.push_back(x.shape()[static_cast<size_t>(axis)]);
    steps.push_back(strides[static_cast<size_t>(axis)]);
  }
  Tensor y = context.make(x.dtype(), shape);
  const int64_t width = shape.back();
  const int64_t step = steps.back();
  shape.pop_back();
  const auto* from = reinterpret_cast<const uint32_t*>(x.bytes());
  auto* to = reinterpret_cast<uint32_t*>(y.mutable_bytes());
  reference::for_each_offset<1>(shape, {steps}, [&](int64_t at) {
    if (step == 1) {
      std::memcpy(to, from + at, static_cast<size_t>(width) * sizeof(uint32_t));
    } else {
      for (int64_t i = 0; i < width; ++i) to[i] = from[at + i * step];
    }
    to += width;
  });
  context.set_output(0, std::move(y));
}

bool takes_transpose(const KernelContext& context) {
  const Tensor* x = context.value(0).tensor();
  return x != nullptr && x->size() != 0 && (x->dtype() == DType::F32 || x->dtype() == DType::I32);
}

}  // namespace

void register_movement(KernelTable& table) {
  table.add(kOnnxDomain, "Transpose", {std::string(kImplementation), 1, run_transpose, takes_transpose});
}

}  // namespace quern::runtime::plain
