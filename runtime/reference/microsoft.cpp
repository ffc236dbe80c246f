// com.microsoft: activations, norms and products of floats.
#include <algorithm>
#include <cmath>

#include "runtime/reference/functions.h"
#include "runtime/reference/matmul.h"
#include "runtime/reference/normalization.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// op(x + bias), the bias [C] along the last axis where there is one.
template <class Op>
void run_activation(KernelContext& context, Op op) {
  const Tensor& x = context.input(0);
  const Tensor* bias = context.optional_input(1);
  if (bias != nullptr && (x.rank() < 1 || bias->size() != x.dim(-1))) {
    context.fail("a bias of shape ", to_string(bias->shape()), " for an input of shape ",
                 to_string(x.shape()));
  }
  const Elements<double> in(x);
  std::vector<double> out(in.size());
  const int64_t columns = bias != nullptr ? bias->size() : 1;
  for (int64_t i = 0; i < x.size(); ++i) {
    out[static_cast<size_t>(i)] = op(in[i] + (bias != nullptr ? bias->at(i % columns) : 0.0));
  }
  context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
}

void run_gelu(KernelContext& context) {
  run_activation(context, gelu<double>);
}
void run_fast_gelu(KernelContext& context) {
  run_activation(context, gelu_tanh<double>);
}
void run_quick_gelu(KernelContext& context) {
  const double alpha = context.node().float_attribute("alpha", 1.702F);
  run_activation(context, [alpha](double x) { return x * sigmoid(alpha * x); });
}

// input + skip [+ bias], in double; skip may lack the batch dimension or have it as 1.
std::vector<double> residual_sum(KernelContext& context, const Tensor* bias) {
  const Tensor& x = context.input(0);
  const Tensor& skip = context.input(1);
  if (broadcast_shapes(x.shape(), skip.shape()) != x.shape()) {
    context.fail("a skip of shape ", to_string(skip.shape()), " for an input of shape ",
                 to_string(x.shape()));
  }
  const Elements<double> a(x), b(skip);
  std::vector<double> sum(a.begin(), a.end());
  size_t i = 0;
  for_each_offset<1>(x.shape(), {broadcast_strides(skip.shape(), x.shape())},
                     [&](int64_t offset) { sum[i++] += b[offset]; });
  if (bias != nullptr) {
    if (bias->size() != x.dim(-1)) context.fail("a bias of ", bias->size(), " elements");
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += bias->at(static_cast<int64_t>(k) % bias->size());
  }
  return sum;
}

void normalize_sum(KernelContext& context, const std::vector<double>& sum, const Shape& shape, DType dtype,
                   const Tensor& gamma, const Tensor* beta, bool subtract_mean) {
  const Tensor wide = Tensor::from<double>(shape, sum);
  const double epsilon = context.node().float_attribute("epsilon", 1e-12F);
  const NormResult rows = normalize_rows(context, wide, shape.back(), subtract_mean, epsilon);
  const Tensor normalized = Tensor::from<double>(shape, rows.values);
  context.set_output(0, scale_and_shift(context, normalized, gamma, beta).cast(dtype));
}

void run_skip_norm(KernelContext& context, bool subtract_mean) {
  const Tensor& x = context.input(0);
  if (x.rank() < 1) context.fail("the input is a scalar");
  const Tensor* beta = subtract_mean ? context.optional_input(3) : nullptr;
  const Tensor* bias = context.optional_input(subtract_mean ? 4 : 3);
  const std::vector<double> sum = residual_sum(context, bias);
  normalize_sum(context, sum, x.shape(), x.dtype(), context.input(2), beta, subtract_mean);
  if (context.wants_output(1) || context.wants_output(2)) {
    const Tensor wide = Tensor::from<double>(x.shape(), sum);
    const NormResult rows = normalize_rows(context, wide, x.dim(-1), subtract_mean,
                                           context.node().float_attribute("epsilon", 1e-12F));
    Shape shape = x.shape();
    shape.back() = 1;
    context.set_output(1, to_tensor(DType::F32, shape, rows.means));
    context.set_output(2, to_tensor(DType::F32, shape, rows.inverse_deviations));
  }
  if (context.wants_output(3)) context.set_output(3, to_tensor(x.dtype(), x.shape(), sum));
}

void run_skip_layer_normalization(KernelContext& context) {
  run_skip_norm(context, true);
}
void run_skip_simplified_layer_normalization(KernelContext& context) {
  run_skip_norm(context, false);
}

// The sum of word, position and segment embeddings, normalised; and how many tokens of each row are no
// padding.
void run_embed_layer_normalization(KernelContext& context) {
  const Tensor& ids = context.input(0);
  const Tensor* segments = context.optional_input(1);
  const Tensor& words = context.input(2);
  const Tensor& places = context.input(3);
  const Tensor* kinds = context.optional_input(4);
  const Tensor* positions = context.optional_input(8);
  if (ids.rank() != 2 || words.rank() != 2 || (positions != nullptr && positions->rank() != 2)) {
    context.fail("ids, positions or embeddings have the wrong rank");
  }
  const int64_t batch = ids.dim(0), length = ids.dim(1), width = words.dim(1);
  const Shape shape{batch, length, width};
  const bool shared = context.node().int_attribute("mask_index_type", 1) == 0;
  std::vector<double> sum = make_buffer<double>(context, shape);
  const auto add_row = [&](const Tensor& table, int64_t row, int64_t token) {
    if (table.rank() != 2 || table.dim(1) != width || row < 0 || row >= table.dim(0)) {
      context.fail("row ", row, " of an embedding of shape ", to_string(table.shape()));
    }
    for (int64_t i = 0; i < width; ++i)
      sum[static_cast<size_t>(token * width + i)] += table.at(row * width + i);
  };
  for (int64_t token = 0; token < batch * length; ++token) {
    add_row(words, ids.int_at(token), token);
    int64_t position = token % length;
    if (positions != nullptr) position = positions->int_at(positions->dim(0) == 1 ? position : token);
    add_row(places, position, token);
    if (segments != nullptr && kinds != nullptr) add_row(*kinds, segments->int_at(token), token);
  }
  normalize_sum(context, sum, shape, words.dtype(), context.input(5), &context.input(6), true);
  Tensor counts = context.make(DType::I32, {batch});
  const Tensor* mask = context.optional_input(7);
  for (int64_t b = 0; b < batch && !shared && mask != nullptr; ++b) {
    int64_t count = 0;
    for (int64_t i = 0; i < length; ++i) count += mask->int_at(b * length + i) == 1 ? 1 : 0;
    counts.set_int(b, count);
  }
  context.set_output(1, std::move(counts));
  if (context.wants_output(2)) context.set_output(2, to_tensor(words.dtype(), shape, sum));
}

// The last two axes exchanged; `batch`: first [d0, ..., dn, m, k] read as [m, d0, ..., dn, k].
Tensor transposed(const KernelContext& context, const Tensor& x, bool matrix, bool batch) {
  if (x.rank() < 2 || (!matrix && !batch)) return x;
  Shape shape = x.shape();
  Shape strides = strides_of(shape);
  if (batch) {
    std::rotate(shape.begin(), shape.begin() + 1, shape.end() - 1);
    std::rotate(strides.begin(), strides.begin() + 1, strides.end() - 1);
  }
  if (matrix) {
    std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    std::swap(strides[strides.size() - 1], strides[strides.size() - 2]);
  }
  return strided_copy(context, x, shape, strides);
}

void run_fused_matmul(KernelContext& context) {
  const Node& node = context.node();
  const auto flag = [&](const char* name) { return node.int_attribute(name, 0) != 0; };
  const Tensor a = transposed(context, context.input(0), flag("transA"), flag("transBatchA"));
  const Tensor b = transposed(context, context.input(1), flag("transB"), flag("transBatchB"));
  check_same_dtype(context, a, b);
  const Tensor product = matmul(context, a, b, DType::F64);
  const double alpha = node.float_attribute("alpha", 1.0F);
  std::vector<double> out;
  for (const double value : Elements<double>(product)) out.push_back(alpha * value);
  context.set_output(0, to_tensor(a.dtype(), product.shape(), out));
}

}  // namespace

void register_microsoft(KernelTable& table) {
  add_microsoft_reference(table, {"Gelu", "BiasGelu"}, run_gelu);
  add_microsoft_reference(table, {"FastGelu"}, run_fast_gelu);
  add_microsoft_reference(table, {"QuickGelu"}, run_quick_gelu);
  add_microsoft_reference(table, {"SkipLayerNormalization"}, run_skip_layer_normalization);
  add_microsoft_reference(table, {"SkipSimplifiedLayerNormalization"},
                          run_skip_simplified_layer_normalization);
  add_microsoft_reference(table, {"EmbedLayerNormalization"}, run_embed_layer_normalization);
  add_microsoft_reference(table, {"FusedMatMul"}, run_fused_matmul);
}

}  // namespace quern::runtime::reference
