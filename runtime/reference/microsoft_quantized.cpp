// com.microsoft: products with quantized weights.
#include <algorithm>
#include <cmath>

#include "runtime/reference/matmul.h"
#include "runtime/reference/packed_codes.h"
#include "runtime/reference/quantization.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {

std::vector<double> dequantize_blocks(const KernelContext& context, const BlockCodes& codes,
                                      const Tensor& scales, const Tensor* zero_points) {
  const int64_t blocks = codes.blocks();
  if (scales.size() != codes.rows * blocks) {
    context.fail("scales of shape ", to_string(scales.shape()), " for ", codes.rows, " rows of ", blocks,
                 " blocks");
  }
  const int64_t packed_row = (blocks * codes.bits + 7) / 8;
  const bool packed = zero_points != nullptr && zero_points->dtype() == DType::U8;
  if (zero_points != nullptr && zero_points->size() != codes.rows * (packed ? packed_row : blocks)) {
    context.fail("zero points of shape ", to_string(zero_points->shape()), " for ", codes.rows, " rows of ",
                 blocks, " blocks");
  }
  const Elements<double> scale(scales);
  std::vector<double> out = make_buffer<double>(context, {codes.rows, codes.columns});
  const auto zero_of = [&](int64_t row, int64_t group) {
    if (zero_points == nullptr) return static_cast<double>(int64_t{1} << (codes.bits - 1));
    if (!packed) return zero_points->at(row * blocks + group);
    const uint8_t* zeros = zero_points->data<uint8_t>().data() + row * packed_row;
    return static_cast<double>(packed_code(zeros, group, codes.bits));
  };
  for (int64_t row = 0; row < codes.rows; ++row) {
    for (int64_t i = 0; i < codes.columns; ++i) {
      const int64_t group = codes.groups.empty() ? i / codes.block : codes.groups[static_cast<size_t>(i)];
      const int64_t code = packed_code(codes.codes + row * codes.code_stride, i, codes.bits);
      out[static_cast<size_t>(row * codes.columns + i)] =
          (static_cast<double>(code) - zero_of(row, group)) * scale[row * blocks + group];
    }
  }
  return out;
}

namespace {

bool is_code_width(int64_t bits) {
  return bits == 2 || bits == 4 || bits == 8;
}

// x [..., K] times w [N, K] transposed, plus the bias.
void set_linear(KernelContext& context, const Tensor& x, const std::vector<double>& w, int64_t n, int64_t k,
                const Tensor* bias) {
  if (x.rank() < 1 || x.dim(-1) != k)
    context.fail("an input of shape ", to_string(x.shape()), " for K = ", k);
  Shape shape = x.shape();
  shape.back() = n;
  const int64_t rows = k == 0 ? 0 : x.size() / k;
  const Elements<double> in(x);
  std::vector<double> out = make_buffer<double>(context, shape);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias != nullptr ? bias->at(j) : 0.0;
      for (int64_t i = 0; i < k; ++i) sum += in[r * k + i] * w[static_cast<size_t>(j * k + i)];
      out[static_cast<size_t>(r * n + j)] = sum;
    }
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

// g_idx [K], or padded to whole blocks: the group of each column, where these were quantized in another
// order.
std::vector<int64_t> groups_of(KernelContext& context, const BlockCodes& codes) {
  std::vector<int64_t> groups = int_values(context.input(4));
  const auto columns = static_cast<size_t>(codes.columns);
  if (groups.size() < columns || groups.size() > static_cast<size_t>(codes.blocks() * codes.block)) {
    context.fail("g_idx of ", groups.size(), " elements for K = ", codes.columns);
  }
  groups.resize(columns);
  for (const int64_t group : groups) {
    if (group < 0 || group >= codes.blocks()) {
      context.fail("g_idx names group ", group, " of ", codes.blocks());
    }
  }
  return groups;
}

// (A, B u8 [N, blocks, block*bits/8], scales, zero_points?, g_idx?, bias?)
void run_matmul_nbits(KernelContext& context) {
  const Node& node = context.node();
  const int64_t n = node.int_attribute("N", 0), k = node.int_attribute("K", 0);
  BlockCodes codes{.rows = n,
                   .columns = k,
                   .bits = node.int_attribute("bits", 4),
                   .block = node.int_attribute("block_size", 0)};
  constexpr int64_t kMost = int64_t{1} << 30;
  if (n < 1 || k < 1 || codes.block < 16 || n > kMost || k > kMost || codes.block > kMost ||
      !is_code_width(codes.bits)) {
    context.fail("N ", n, ", K ", k, ", block_size ", codes.block, ", bits ", codes.bits);
  }
  if (node.int_attribute("weight_prepacked", 0) != 0) context.unsupported("weights packed for a GPU");
  if (context.has_input(4)) codes.groups = groups_of(context, codes);
  const Tensor& b = context.input(1);
  codes.code_stride = codes.blocks() * (codes.block * codes.bits / 8);
  if (b.dtype() != DType::U8 || b.size() % n != 0 || b.size() / n != codes.code_stride) {
    context.fail("weights of shape ", to_string(b.shape()), " for N ", n, ", K ", k);
  }
  codes.codes = b.data<uint8_t>().data();
  const Tensor* bias = context.optional_input(5);
  if (bias != nullptr && bias->size() != n) context.fail("a bias of ", bias->size(), " elements");
  const std::vector<double> w =
      dequantize_blocks(context, codes, context.input(2), context.optional_input(3));
  set_linear(context, context.input(0), w, n, k, bias);
}

// The four-bit float formats of bitsandbytes (Dettmers et al., arXiv 2305.14314).
constexpr double kNf4[16] = {-1.0,
                             -0.6961928009986877,
                             -0.5250730514526367,
                             -0.39491748809814453,
                             -0.28444138169288635,
                             -0.18477343022823334,
                             -0.09105003625154495,
                             0.0,
                             0.07958029955625534,
                             0.16093020141124725,
                             0.24611230194568634,
                             0.33791524171829224,
                             0.44070982933044434,
                             0.5626170039176941,
                             0.7229568362236023,
                             1.0};
constexpr double kFp4[16] = {0.0,  0.00520833333,  0.66666667,  1.0,  0.33333333,  0.5,  0.16666667,  0.25,
                             -0.0, -0.00520833333, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25};

// (A, B u8 [(N*K+1)/2], absmax [ceil(N*K/block)]); the high nibble comes first.
void run_matmul_bnb4(KernelContext& context) {
  const Node& node = context.node();
  const int64_t n = node.int_attribute("N", 0), k = node.int_attribute("K", 0);
  const int64_t block = node.int_attribute("block_size", 0);
  const int64_t type = node.int_attribute("quant_type", 1);
  if (n < 1 || k < 1 || n > (int64_t{1} << 31) || k > (int64_t{1} << 31) || block < 1 ||
      (type != 0 && type != 1)) {
    context.fail("N ", n, ", K ", k, ", block_size ", block, ", quant_type ", type);
  }
  if (node.int_attribute("transB", 1) != 1) context.unsupported("weights that are not transposed");
  const Tensor& b = context.input(1);
  const Elements<double> most(context.input(2));
  if (b.dtype() != DType::U8 || b.size() != (n * k + 1) / 2 ||
      static_cast<int64_t>(most.size()) != n * k / block + (n * k % block != 0 ? 1 : 0)) {
    context.fail("weights of shape ", to_string(b.shape()), " and absmax of shape ",
                 to_string(context.input(2).shape()), " for N ", n, ", K ", k);
  }
  const std::span<const uint8_t> bytes = b.data<uint8_t>();
  std::vector<double> w = make_buffer<double>(context, {n, k});
  for (int64_t i = 0; i < n * k; ++i) {
    const uint8_t byte = bytes[static_cast<size_t>(i / 2)];
    const int code = i % 2 == 0 ? byte >> 4 : byte & 15;
    w[static_cast<size_t>(i)] = (type == 1 ? kNf4 : kFp4)[code] * most[i / block];
  }
  set_linear(context, context.input(0), w, n, k, nullptr);
}

// a [..., M, K] and b [K, N] as integers without zero points; y = product * scale_a * scale_b + bias in f32.
void set_scaled_product(KernelContext& context, const Tensor& a, const Tensor& b, float scale_a,
                        const Tensor& scale_b, const Tensor* bias) {
  const Tensor product = matmul(context, a, b, DType::I64);
  const int64_t n = b.dim(-1);
  if (scale_b.size() != 1 && scale_b.size() != n)
    context.fail("scales of shape ", to_string(scale_b.shape()));
  if (bias != nullptr && bias->size() != n) context.fail("a bias of ", bias->size(), " elements");
  std::vector<double> out;
  for (int64_t i = 0; i < product.size(); ++i) {
    const double scale = static_cast<double>(scale_a) * scale_b.at(scale_b.size() == 1 ? 0 : i % n);
    out.push_back(static_cast<double>(product.int_at(i)) * scale + (bias != nullptr ? bias->at(i % n) : 0.0));
  }
  context.set_output(0, to_tensor(DType::F32, product.shape(), out));
}

// (A f32, B i8 or u8, b_scale, b_zero?, bias?): A is quantized to u8 over its own range, with 0 in it.
void run_dynamic_quantize_matmul(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Elements<float> values(x);
  float low = 0, high = 0;
  for (const float value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const float scale = high == low ? 1.0F : (high - low) / 255.0F;
  const float zero = std::nearbyint(std::clamp(-low / scale, 0.0F, 255.0F));
  std::vector<int64_t> codes;
  for (const float value : values) {
    const float code = std::clamp(std::nearbyint(value / scale) + zero, 0.0F, 255.0F);
    codes.push_back(static_cast<int64_t>(code - zero));
  }
  const Tensor a = Tensor::from<int64_t>(x.shape(), codes);
  const Tensor b = minus_zero_point(context, context.input(1), context.optional_input(3), -1);
  set_scaled_product(context, a, b, scale, context.input(2), context.optional_input(4));
}

// (A, B, a_scale, b_scale, a_zero?, b_zero?, bias?)
void run_matmul_integer_to_float(KernelContext& context) {
  const Tensor a = minus_zero_point(context, context.input(0), context.optional_input(4), -2);
  const Tensor b = minus_zero_point(context, context.input(1), context.optional_input(5), -1);
  if (context.input(2).size() != 1) context.unsupported("a scale for each row of A");
  set_scaled_product(context, a, b, static_cast<float>(context.input(2).at(0)), context.input(3),
                     context.optional_input(6));
}

// (data, indices, scales, zero_points?): rows of a block-quantized table. Data of u8 holds several codes a
// byte along the last axis, with the zero point 2^(bits-1) unless given; data of i4 and u4 has 0.
void run_gather_block_quantized(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& data = context.input(0);
  const Tensor& indices = context.input(1);
  const Tensor& scales = context.input(2);
  const Tensor* zeros = context.optional_input(3);
  const int64_t bits = data.dtype() == DType::U8 ? node.int_attribute("bits", 4) : bit_width(data.dtype());
  if (!is_code_width(bits) || data.rank() < 1) context.fail("bits is ", bits);
  const int64_t per_byte = data.dtype() == DType::U8 ? 8 / bits : 1;
  Shape shape = data.shape();
  shape.back() *= per_byte;
  const int64_t gather_axis = normalize_axis(context, node.int_attribute("gather_axis", 0), data.rank());
  const int64_t axis = normalize_axis(context, node.int_attribute("quantize_axis", 1), data.rank());
  const ScaleLayout layout(context, shape, scales.shape(), axis, node.int_attribute("block_size", 128));
  const bool packed_zeros = zeros != nullptr && zeros->dtype() == DType::U8 && per_byte > 1;
  const int64_t scale_row = scales.rank() > 0 ? scales.dim(-1) : 1;
  const int64_t zero_row = (scale_row + per_byte - 1) / per_byte;
  if (zeros != nullptr && zeros->size() * (packed_zeros ? 1 : zero_row) !=
                              (packed_zeros ? scales.size() / std::max<int64_t>(1, scale_row) * zero_row
                                            : scales.size() * zero_row)) {
    context.fail("zero points of shape ", to_string(zeros->shape()), " for scales of shape ",
                 to_string(scales.shape()));
  }
  const auto zero_of = [&](int64_t s) {
    if (zeros == nullptr) return data.dtype() == DType::U8 ? int64_t{1} << (bits - 1) : int64_t{0};
    if (!packed_zeros) return zeros->int_at(s);
    return packed_code(zeros->data<uint8_t>().data() + s / scale_row * zero_row, s % scale_row, bits);
  };
  const Shape strides = strides_of(shape);
  const auto at = static_cast<size_t>(gather_axis);
  Shape out_shape(shape.begin(), shape.begin() + gather_axis);
  out_shape.insert(out_shape.end(), indices.shape().begin(), indices.shape().end());
  out_shape.insert(out_shape.end(), shape.begin() + gather_axis + 1, shape.end());
  std::vector<double> out;
  out.reserve(static_cast<size_t>(context.checked_count(DType::F64, out_shape)));
  const int64_t inner = strides[at];
  const int64_t outer = element_count(Shape(shape.begin(), shape.begin() + gather_axis));
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t k = 0; k < indices.size(); ++k) {
      int64_t row = indices.int_at(k);
      if (row < -shape[at] || row >= shape[at])
        context.fail("index ", row, " is outside ", shape[at], " rows");
      if (row < 0) row += shape[at];
      for (int64_t i = 0; i < inner; ++i) {
        const int64_t element = (o * shape[at] + row) * inner + i;
        const int64_t code = data.dtype() == DType::U8
                                 ? packed_code(data.data<uint8_t>().data(), element, bits)
                                 : data.int_at(element);
        const int64_t s = layout(element);
        out.push_back(static_cast<double>(code - zero_of(s)) * scales.at(s));
      }
    }
  }
  context.set_output(0, to_tensor(scales.dtype(), out_shape, out));
}

}  // namespace

void register_microsoft_quantized(KernelTable& table) {
  add_microsoft_reference(table, {"MatMulNBits"}, run_matmul_nbits);
  add_microsoft_reference(table, {"MatMulBnb4"}, run_matmul_bnb4);
  add_microsoft_reference(table, {"DynamicQuantizeMatMul"}, run_dynamic_quantize_matmul);
  add_microsoft_reference(table, {"MatMulIntegerToFloat"}, run_matmul_integer_to_float);
  add_microsoft_reference(table, {"GatherBlockQuantized"}, run_gather_block_quantized);
}

}  // namespace quern::runtime::reference
