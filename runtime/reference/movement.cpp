// Operators that move elements without computing on them.
#include <algorithm>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

void run_shape(KernelContext& context) {
  const Shape& shape = context.input(0).shape();
  const auto rank = static_cast<int64_t>(shape.size());
  const auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t begin = clamp(context.node().int_attribute("start", 0));
  const int64_t end = std::max(begin, clamp(context.node().int_attribute("end", rank)));
  const std::vector<int64_t> dims(shape.begin() + begin, shape.begin() + end);
  context.set_output(0, Tensor::from<int64_t>({end - begin}, dims));
}

}  // namespace

void register_movement(KernelTable& table) {
  add_reference(table, {"Shape"}, run_shape);
}

}  // namespace quern::runtime::reference
