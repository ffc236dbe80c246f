// Linear and Embedding of ai.quern: dense weights by oneDNN, packed ones by the kernels of decoders.
#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/cpu/linear.h"
#include "runtime/cpu/linear_input.h"
#include "runtime/plain/multiplier.h"
#include "runtime/plain/onednn.h"
#include "runtime/plain/parallel.h"
#include "runtime/plain/register.h"

namespace quern::runtime::plain {
namespace {

struct Free {
  void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory allocate(int64_t bytes) {
  return Memory(static_cast<std::byte*>(::operator new (static_cast<size_t>(bytes), std::align_val_t{64})));
}

cpu::LinearScratch& scratch_for(int threads) {
  thread_local std::unique_ptr<cpu::LinearScratch> kept;
  if (!kept || kept->threads() < threads) kept = std::make_unique<cpu::LinearScratch>(threads);
  return *kept;
}

void multiply_packed(const PackedTensor& weight, const ActivationScheme& scheme, const Tensor& x,
                     const float* bias, Tensor& y) {
  const int64_t k = weight.spec().cols;
  const int64_t n = weight.spec().rows;
  const int64_t rows = x.size() / k;
  const cpu::ActivationFormat format = cpu::input_format(scheme, weight.spec(), cpu::ActivationMode::A16);
  const auto bytes = cpu::Activations::byte_size(format, rows);
  const Memory memory = allocate(bytes);
  const cpu::Activations input =
      cpu::Activations::place(format, rows, {memory.get(), static_cast<size_t>(bytes)});
  const float* from = x.data<float>().data();
  for_row_shares(rows, k, [&](int, int64_t first, int64_t count) { input.encode(from, k, first, count); });
  const cpu::LinearOp op{.weight = &weight,
                         .input = &input,
                         .bias = bias,
                         .y = y.mutable_data<float>().data(),
                         .y_stride = n,
                         .rows = rows};
  cpu::check_linear(op);
  constexpr int64_t kWorthAThread = 1 << 19;  // multiply-adds
  const int threads = rows * k * n < 2 * kWorthAThread ? 1 : most_shares();
  cpu::LinearScratch& scratch = scratch_for(threads);
  for_shares(threads, 1, [&](int, int64_t first, int64_t count) {
    for (int64_t thread = first; thread < first + count; ++thread)
      cpu::linear({&op, 1}, static_cast<int>(thread), threads, scratch);
  });
}

// x [..., K] * weight [N, K]^T + bias [N]
void run_linear(KernelContext& context) {
  const Tensor& x = context.input(0);
  const RuntimeValue& weight = context.value(1);
  const Shape shape = weight.packed() != nullptr ? weight.packed()->shape() : context.input(1).shape();
  const Tensor* bias = context.optional_input(2);
  const ActivationScheme scheme = activation_scheme(context.node());
  const bool fits = x.rank() > 0 && shape.size() == 2 && x.dim(-1) == shape[1] &&
                    (bias == nullptr || bias->shape() == Shape{shape[0]});
  if (!fits) return run_reference(context);
  Shape out = x.shape();
  out.back() = shape[0];
  Tensor y = context.make(DType::F32, out);
  const float* addend = bias != nullptr ? bias->data<float>().data() : nullptr;
  if (weight.packed() != nullptr) {
    multiply_packed(*weight.packed(), scheme, x, addend, y);
  } else {
    const Product product{.m = x.size() / shape[1],
                          .k = shape[1],
                          .n = shape[0],
                          .transpose_b = true,
                          .bias = addend != nullptr};
    with_onednn(context, [&] {
      multiply(product, x.data<float>().data(), context.input(1).data<float>().data(),
               y.mutable_data<float>().data(), addend);
    });
  }
  context.set_output(0, std::move(y));
}

bool is_floats(const KernelContext& context, size_t input) {
  const Tensor* tensor = context.has_input(input) ? context.value(input).tensor() : nullptr;
  return tensor != nullptr && tensor->dtype() == DType::F32 && tensor->size() != 0;
}

bool takes_linear(const KernelContext& context) {
  const PackedTensor* packed = context.has_input(1) ? context.value(1).packed() : nullptr;
  return is_floats(context, 0) && ((packed && packed->spec().has_kernels()) || is_floats(context, 1)) &&
         (!context.has_input(2) || is_floats(context, 2));
}

void run_embedding(KernelContext& context) {
  const Tensor& table = context.input(0);
  const Tensor& ids = context.input(1);
  if (table.rank() != 2) return run_reference(context);
  const int64_t width = table.dim(1);
  Shape shape = ids.shape();
  shape.push_back(width);
  Tensor y = context.make(DType::F32, shape);
  const float* from = table.data<float>().data();
  float* to = y.mutable_data<float>().data();
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids.int_at(i);
    if (id < 0 || id >= table.dim(0)) return run_reference(context);
    std::copy_n(from + id * width, width, to + i * width);
  }
  context.set_output(0, std::move(y));
}

bool takes_embedding(const KernelContext& context) {
  return is_floats(context, 0) && context.has_input(1) && context.value(1).tensor() != nullptr &&
         is_integer(context.dtype(1));
}

}  // namespace

void register_linear(KernelTable& table) {
  table.add(kQuernDomain, "Linear", {std::string(kImplementation), 1, run_linear, takes_linear});
  table.add(kQuernDomain, "Embedding", {std::string(kImplementation), 1, run_embedding, takes_embedding});
}

}  // namespace quern::runtime::plain
