// MatMul, Gemm and MatMulInteger by oneDNN's matmul.
#include <algorithm>

#include "runtime/plain/multiplier.h"
#include "runtime/plain/onednn.h"
#include "runtime/plain/register.h"
#include "runtime/reference/matmul.h"
#include "runtime/reference/strided.h"

namespace quern::runtime::plain {
namespace {

using reference::MatMulShapes;

// Batches that need no loop: one matrix b for all of a's rows, or matrices side by side in both.
void multiply(const MatMulShapes& s, const float* a, const float* b, float* out) {
  const auto count = static_cast<int64_t>(s.pairs.size());
  bool one_b = true;
  bool in_step = true;
  for (int64_t i = 0; i < count; ++i) {
    const auto& [ia, ib] = s.pairs[static_cast<size_t>(i)];
    one_b = one_b && ia == i && ib == 0;
    in_step = in_step && ia == i && ib == i;
  }
  if (one_b) return multiply(Product{.m = s.m * count, .k = s.k, .n = s.n}, a, b, out);
  if (in_step) return multiply(Product{.batch = count, .m = s.m, .k = s.k, .n = s.n}, a, b, out);
  const Product one{.m = s.m, .k = s.k, .n = s.n};
  for (int64_t i = 0; i < count; ++i) {
    const auto& [ia, ib] = s.pairs[static_cast<size_t>(i)];
    multiply(one, a + ia * s.m * s.k, b + ib * s.k * s.n, out + i * s.m * s.n);
  }
}

void run_matmul(KernelContext& context) {
  const Tensor& a = context.input(0);
  const Tensor& b = context.input(1);
  const MatMulShapes s = reference::matmul_shapes(context, a.shape(), b.shape());
  Tensor out = context.make(DType::F32, s.out);
  with_onednn(context, [&] {
    multiply(s, a.data<float>().data(), b.data<float>().data(), out.mutable_data<float>().data());
  });
  context.set_output(0, std::move(out));
}

// C, broadcast to the output.
void spread(const KernelContext& context, const Tensor& c, Tensor& out) {
  if (broadcast_shapes(c.shape(), out.shape()) != out.shape()) {
    context.fail("C of shape ", to_string(c.shape()), " does not broadcast to ", to_string(out.shape()));
  }
  const std::span<const float> from = c.data<float>();
  float* to = out.mutable_data<float>().data();
  reference::for_each_offset<1>(out.shape(), {reference::broadcast_strides(c.shape(), out.shape())},
                                [&](int64_t offset) { *to++ = from[static_cast<size_t>(offset)]; });
}

void run_gemm(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& a = context.input(0);
  const Tensor& b = context.input(1);
  if (a.rank() != 2 || b.rank() != 2) context.fail("the matrices must have rank 2");
  Product p;
  p.transpose_a = node.int_attribute("transA", 0) != 0;
  p.transpose_b = node.int_attribute("transB", 0) != 0;
  p.alpha = node.float_attribute("alpha", 1.0F);
  p.m = a.dim(p.transpose_a ? 1 : 0);
  p.k = a.dim(p.transpose_a ? 0 : 1);
  p.n = b.dim(p.transpose_b ? 0 : 1);
  if (b.dim(p.transpose_b ? 1 : 0) != p.k) {
    context.fail("shapes ", to_string(a.shape()), " and ", to_string(b.shape()), " do not multiply");
  }
  Tensor out = context.make(DType::F32, {p.m, p.n});
  if (const Tensor* c = context.optional_input(2)) {
    p.beta = node.float_attribute("beta", 1.0F);
    spread(context, *c, out);
  }
  with_onednn(context, [&] {
    multiply(p, a.data<float>().data(), b.data<float>().data(), out.mutable_data<float>().data());
  });
  context.set_output(0, std::move(out));
}

// Codes [rows, width] less their zero point: one for all, one for each row, or (`columns`) one for each
// column.
std::vector<float> centered(const Tensor& codes, const Tensor* zero, bool columns) {
  std::vector<float> out = codes.to_floats();
  if (zero == nullptr) return out;
  const std::vector<float> zeros = zero->to_floats();
  const auto width = static_cast<size_t>(codes.dim(-1));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] -= zeros[zeros.size() == 1 ? 0 : (columns ? i % width : i / width)];
  }
  return out;
}

// (x - x_zero) (w - w_zero), exact. oneDNN's products of bytes saturate on machines without VNNI, so this
// multiplies floats: a sum of 256 products below 256 * 256 is a whole number below 2^24 however it is added
// up. Sums of such sums are taken in int32, wrapping as the operator does.
void run_matmul_integer(KernelContext& context) {
  constexpr int64_t kExact = 256;
  const Tensor& a = context.input(0);
  const Tensor& b = context.input(1);
  const MatMulShapes s = reference::matmul_shapes(context, a.shape(), b.shape());
  const Tensor* a_zero = context.optional_input(2);
  const Tensor* b_zero = context.optional_input(3);
  const bool rows_fit = a_zero == nullptr || a_zero->size() == 1 || (a.rank() == 2 && a_zero->size() == s.m);
  const bool columns_fit = b_zero == nullptr || b_zero->size() == 1 || b_zero->size() == s.n;
  if (a.rank() < 2 || b.rank() != 2 || !rows_fit || !columns_fit) return run_reference(context);
  const std::vector<float> x = centered(a, a_zero, false);
  const std::vector<float> w = centered(b, b_zero, true);
  const int64_t rows = s.m * static_cast<int64_t>(s.pairs.size());
  Tensor out = context.make(DType::I32, s.out);
  std::vector<float> part(static_cast<size_t>(rows * s.n));
  std::vector<float> block(static_cast<size_t>(rows * std::min(kExact, s.k)));
  const std::span<int32_t> sums = out.mutable_data<int32_t>();
  with_onednn(context, [&] {
    for (int64_t k = 0; k < s.k; k += kExact) {
      const int64_t depth = std::min(kExact, s.k - k);
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(x.data() + r * s.k + k, depth, block.data() + r * depth);
      }
      multiply(Product{.m = rows, .k = depth, .n = s.n}, block.data(), w.data() + k * s.n, part.data());
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i] = static_cast<int32_t>(static_cast<uint32_t>(sums[i]) +
                                       static_cast<uint32_t>(static_cast<int32_t>(part[i])));
      }
    }
  });
  context.set_output(0, std::move(out));
}

bool takes_codes(const KernelContext& context) {
  for (size_t i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) continue;
    const Tensor* tensor = context.value(i).tensor();
    if (tensor == nullptr || tensor->size() == 0) return false;
    if (tensor->dtype() != DType::I8 && tensor->dtype() != DType::U8) return false;
  }
  return context.has_input(0) && context.has_input(1);
}

}  // namespace

void register_products(KernelTable& table) {
  table.add(kOnnxDomain, "MatMul", {std::string(kImplementation), 1, run_matmul, takes_floats});
  table.add(kOnnxDomain, "Gemm", {std::string(kImplementation), 7, run_gemm, takes_floats});
  table.add(kOnnxDomain, "MatMulInteger", {std::string(kImplementation), 1, run_matmul_integer, takes_codes});
}

}  // namespace quern::runtime::plain
