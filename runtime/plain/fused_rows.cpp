// com.microsoft's fused row operators: the norms of a sum, the embeddings of BERT, activations with a bias.
#include <functional>
#include <vector>

#include "runtime/cpu/row_kernels.h"
#include "runtime/plain/parallel.h"
#include "runtime/plain/register.h"

namespace quern::runtime::plain {
namespace {

const float* floats_of(const Tensor* tensor) {
  return tensor != nullptr ? tensor->data<float>().data() : nullptr;
}

bool is_row(const Tensor* tensor, int64_t width) {
  return tensor == nullptr || (tensor->rank() == 1 && tensor->size() == width);
}

// Outputs: the norm, mean and 1 / deviation of each row, the sum.
struct NormOutputs {
  Tensor normed, means, inverse_deviations, sum;
};

NormOutputs make_outputs(const KernelContext& context, const Shape& shape) {
  Shape per_row = shape;
  per_row.back() = 1;
  NormOutputs out;
  out.normed = context.make(DType::F32, shape);
  if (context.wants_output(1) || context.wants_output(2)) {
    out.means = context.make(DType::F32, per_row);
    out.inverse_deviations = context.make(DType::F32, per_row);
  }
  if (context.wants_output(3)) out.sum = context.make(DType::F32, shape);
  return out;
}

float* writable(Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data<float>().data() : nullptr;
}

// norm(input + skip + bias) * gamma + beta
template <bool kSubtractMean>
void run_skip_norm(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& skip = context.input(1);
  const Tensor& gamma = context.input(2);
  const Tensor* beta = kSubtractMean ? context.optional_input(3) : nullptr;
  const Tensor* bias = context.optional_input(kSubtractMean ? 4 : 3);
  const int64_t width = x.rank() > 0 ? x.dim(-1) : 0;
  // A skip without a batch dimension, or with one of 1, is repeated.
  const bool repeats = x.rank() == 3 && skip.size() == x.dim(1) * width && skip.rank() >= 2 &&
                       skip.dim(-1) == width && skip.dim(-2) == x.dim(1);
  const bool fits = width > 0 && (skip.shape() == x.shape() || repeats) && is_row(&gamma, width) &&
                    is_row(beta, width) && is_row(bias, width);
  if (!fits || (!kSubtractMean && (context.wants_output(1) || context.wants_output(2))))
    return run_reference(context);
  NormOutputs out = make_outputs(context, x.shape());
  float *normed = writable(out.normed), *sum = writable(out.sum);
  float *means = writable(out.means), *inverse_deviations = writable(out.inverse_deviations);
  const int64_t skip_rows = skip.size() / width;
  const float epsilon = context.node().float_attribute("epsilon", 1e-12F);
  for_row_shares(x.size() / width, width, [&](int, int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      cpu::NormRow row;
      row.x = floats_of(&x) + r * width;
      row.skip = floats_of(&skip) + r % skip_rows * width;
      row.bias = floats_of(bias);
      row.weight = floats_of(&gamma);
      row.shift = floats_of(beta);
      row.sum = sum != nullptr ? sum + r * width : nullptr;
      row.out = normed + r * width;
      row.size = width;
      row.epsilon = epsilon;
      kSubtractMean ? cpu::row_kernels().layer_norm(row) : cpu::row_kernels().rms_norm(row);
      if (means == nullptr) continue;
      means[r] = row.mean;
      inverse_deviations[r] = row.inverse_std;
    }
  });
  context.set_output(0, std::move(out.normed));
  if (out.means.defined()) {
    context.set_output(1, std::move(out.means));
    context.set_output(2, std::move(out.inverse_deviations));
  }
  if (out.sum.defined()) context.set_output(3, std::move(out.sum));
}

// op(x + bias), the bias along the last axis.
template <cpu::Unary kOp>
void run_biased(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor* bias = context.optional_input(1);
  if (bias != nullptr && (x.rank() < 1 || bias->size() != x.dim(-1))) return run_reference(context);
  const int64_t width = bias != nullptr ? bias->size() : x.rank() > 0 ? x.dim(-1) : 1;
  Tensor y = context.make(DType::F32, x.shape());
  const float *from = floats_of(&x), *addend = floats_of(bias);
  float* to = writable(y);
  for_row_shares(x.size() / width, width, [&](int, int64_t first, int64_t count) {
    const cpu::RowKernels& kernels = cpu::row_kernels();
    for (int64_t r = first; addend != nullptr && r < first + count; ++r)
      kernels.binary(cpu::BinaryOp::Add, from + r * width, addend, to + r * width, width);
    const float* sums = addend != nullptr ? to : from;
    kernels.unary(kOp, sums + first * width, to + first * width, count * width);
  });
  context.set_output(0, std::move(y));
}

// x sigmoid(alpha x)
void run_quick_gelu(KernelContext& context) {
  if (context.node().float_attribute("alpha", 1.702F) != 1.702F) return run_reference(context);
  run_biased<cpu::Unary::GeluQuick>(context);
}

bool takes_ids(const KernelContext& context) {
  for (size_t i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) continue;
    const Tensor* tensor = context.value(i).tensor();
    const bool whole = i == 0 || i == 1 || i == 7 || i == 8;
    if (tensor == nullptr || tensor->size() == 0) return false;
    if (whole ? !is_integer(tensor->dtype()) : tensor->dtype() != DType::F32) return false;
  }
  return context.has_input(0);
}

// The row of each token in a table; empty where one lies outside.
std::vector<const float*> rows_of(const Tensor& table, int64_t tokens,
                                  const std::function<int64_t(int64_t token)>& row) {
  std::vector<const float*> rows;
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t at = row(token);
    if (at < 0 || at >= table.dim(0)) return {};
    rows.push_back(table.data<float>().data() + at * table.dim(1));
  }
  return rows;
}

// How many tokens of each row are no padding; zeros where nobody asked.
Tensor token_counts(const KernelContext& context, const Tensor& ids, const Tensor* mask) {
  Tensor counts = context.make(DType::I32, {ids.dim(0)});
  if (mask == nullptr || context.node().int_attribute("mask_index_type", 1) == 0) return counts;
  for (int64_t b = 0; b < ids.dim(0); ++b) {
    int64_t count = 0;
    for (int64_t i = 0; i < ids.dim(1); ++i) count += mask->int_at(b * ids.dim(1) + i) == 1 ? 1 : 0;
    counts.set_int(b, count);
  }
  return counts;
}

// The sum of word, position and segment embeddings, normalised. What is out of the ordinary, and every
// mistake, is the reference's.
void run_embed_layer_norm(KernelContext& context) {
  const Tensor& ids = context.input(0);
  const Tensor* segments = context.optional_input(1);
  const Tensor& words = context.input(2);
  const Tensor& places = context.input(3);
  const Tensor* kinds = context.optional_input(4);
  const Tensor& gamma = context.input(5);
  const Tensor& beta = context.input(6);
  const bool has_kinds = segments != nullptr && kinds != nullptr;
  const int64_t width = words.rank() == 2 ? words.dim(1) : 0;
  const bool fits =
      ids.rank() == 2 && width > 0 && places.rank() == 2 && places.dim(1) == width &&
      (!has_kinds || (kinds->rank() == 2 && kinds->dim(1) == width && segments->shape() == ids.shape())) &&
      is_row(&gamma, width) && is_row(&beta, width);
  const Tensor* mask = context.optional_input(7);
  if (!fits || context.has_input(8) || (mask != nullptr && mask->shape() != ids.shape()))
    return run_reference(context);
  const int64_t tokens = ids.size(), length = ids.dim(1);
  const auto word = rows_of(words, tokens, [&](int64_t token) { return ids.int_at(token); });
  const auto place = rows_of(places, tokens, [&](int64_t token) { return token % length; });
  std::vector<const float*> kind(static_cast<size_t>(tokens), nullptr);
  if (has_kinds) kind = rows_of(*kinds, tokens, [&](int64_t token) { return segments->int_at(token); });
  if (word.empty() || place.empty() || kind.empty()) return run_reference(context);
  const Shape shape{ids.dim(0), length, width};
  Tensor y = context.make(DType::F32, shape);
  Tensor sum = context.wants_output(2) ? context.make(DType::F32, shape) : Tensor();
  float *normed = writable(y), *sums = writable(sum);
  const float epsilon = context.node().float_attribute("epsilon", 1e-12F);
  for_row_shares(tokens, width, [&](int, int64_t first, int64_t count) {
    for (int64_t token = first; token < first + count; ++token) {
      const auto at = static_cast<size_t>(token);
      cpu::NormRow row;
      row.x = word[at];
      row.skip = place[at];
      row.bias = kind[at];
      row.weight = floats_of(&gamma);
      row.shift = floats_of(&beta);
      row.sum = sums != nullptr ? sums + token * width : nullptr;
      row.out = normed + token * width;
      row.size = width;
      row.epsilon = epsilon;
      cpu::row_kernels().layer_norm(row);
    }
  });
  context.set_output(0, std::move(y));
  context.set_output(1, token_counts(context, ids, mask));
  if (sum.defined()) context.set_output(2, std::move(sum));
}

}  // namespace

void register_fused_rows(KernelTable& table) {
  const auto add = [&](std::string_view op, KernelFunction run, bool (*accepts)(const KernelContext&)) {
    table.add(kMicrosoftDomain, op, {std::string(kImplementation), 1, run, accepts});
  };
  add("SkipLayerNormalization", run_skip_norm<true>, takes_floats);
  add("SkipSimplifiedLayerNormalization", run_skip_norm<false>, takes_floats);
  add("EmbedLayerNormalization", run_embed_layer_norm, takes_ids);
  add("BiasGelu", run_biased<cpu::Unary::Gelu>, takes_floats);
  add("FastGelu", run_biased<cpu::Unary::GeluTanh>, takes_floats);
  add("QuickGelu", run_quick_gelu, takes_floats);
}

}  // namespace quern::runtime::plain
