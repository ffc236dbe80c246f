#include <cstdint>

#include "runtime/cpu/row_kernels.h"
#include "runtime/cpu/simd_operators.h"
#include "runtime/cpu/unary_inline.h"

namespace quern::cpu::QUERN_ISA {
namespace {

// Adds up term(offset, lanes) over a row: four sums in turn, so that additions need not wait for one another,
// then a fixed tree. `term` returns 0 in lanes beyond the row.
template <class Term>
inline F32 fold_sum(int64_t n, Term term) {
  F32 s0 = zero_f(), s1 = zero_f(), s2 = zero_f(), s3 = zero_f();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 = s0 + term(i, kLanes);
    s1 = s1 + term(i + kLanes, kLanes);
    s2 = s2 + term(i + 2 * kLanes, kLanes);
    s3 = s3 + term(i + 3 * kLanes, kLanes);
  }
  for (; i < n; i += kLanes) s0 = s0 + term(i, n - i < kLanes ? n - i : kLanes);
  return (s0 + s1) + (s2 + s3);
}

template <class Body>
inline void for_chunks(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}

// x + skip + bias; written to `sum` where that is wanted, so that the passes after the first may read it
// there.
struct NormInput {
  const NormRow& row;
  F32 at(int64_t i, int64_t lanes) const {
    F32 v = load_lanes(row.x + i, lanes);
    if (row.skip != nullptr) v = v + load_lanes(row.skip + i, lanes);
    if (row.bias != nullptr) v = v + load_lanes(row.bias + i, lanes);
    return v;
  }
};

void write_normed(const NormRow& row, const float* x, F32 mean, F32 factor) {
  for_chunks(row.size, [&](int64_t i, int64_t lanes) {
    F32 v = (load_lanes(x + i, lanes) - mean) * factor;
    if (row.weight != nullptr) v = v * load_lanes(row.weight + i, lanes);
    if (row.shift != nullptr) v = v + load_lanes(row.shift + i, lanes);
    store_lanes(row.out + i, v, lanes);
  });
}

// Where the summed row can be read from after the first pass; it is parked in `out` if nobody wants it.
float* resting_place(const NormRow& row) {
  if (row.sum != nullptr) return row.sum;
  return row.skip != nullptr || row.bias != nullptr ? row.out : nullptr;
}

void rms_norm(NormRow& row) {
  const NormInput input{row};
  float* rest = resting_place(row);
  const F32 squares = fold_sum(row.size, [&](int64_t i, int64_t lanes) {
    const F32 v = input.at(i, lanes);
    if (rest != nullptr) store_lanes(rest + i, v, lanes);
    return v * v;
  });
  const float mean_square = reduce_add(squares) / static_cast<float>(row.size);
  row.inverse_std = 1.0f / __builtin_sqrtf(mean_square + row.epsilon);
  if (row.out != nullptr) write_normed(row, rest != nullptr ? rest : row.x, zero_f(), set1(row.inverse_std));
}

void layer_norm(NormRow& row) {
  const NormInput input{row};
  float* rest = resting_place(row);
  const float* x = rest != nullptr ? rest : row.x;
  const F32 total = fold_sum(row.size, [&](int64_t i, int64_t lanes) {
    const F32 v = input.at(i, lanes);
    if (rest != nullptr) store_lanes(rest + i, v, lanes);
    return v;
  });
  row.mean = reduce_add(total) / static_cast<float>(row.size);
  const F32 mean = set1(row.mean);
  const F32 squares = fold_sum(row.size, [&](int64_t i, int64_t lanes) {
    const F32 v = load_lanes(x + i, lanes) - mean;
    return keep_first(v * v, lanes, zero_f());
  });
  const float variance = reduce_add(squares) / static_cast<float>(row.size);
  row.inverse_std = 1.0f / __builtin_sqrtf(variance + row.epsilon);
  if (row.out != nullptr) write_normed(row, x, mean, set1(row.inverse_std));
}

template <class Function>
void map(const float* x, float* y, int64_t n, Function f) {
  for_chunks(n, [&](int64_t i, int64_t lanes) { store_lanes(y + i, f(load_lanes(x + i, lanes)), lanes); });
}
template <class Function>
void map(const float* a, const float* b, float* y, int64_t n, Function f) {
  for_chunks(n, [&](int64_t i, int64_t lanes) {
    store_lanes(y + i, f(load_lanes(a + i, lanes), load_lanes(b + i, lanes)), lanes);
  });
}

// body(f) with the function on vectors.
template <class Body>
void with_unary(Unary op, Body body) {
  switch (op) {
    case Unary::Identity:
      return body([](F32 x) { return x; });
    case Unary::Relu:
      return body([](F32 x) { return unary<Unary::Relu>(x); });
    case Unary::Silu:
      return body([](F32 x) { return unary<Unary::Silu>(x); });
    case Unary::Gelu:
      return body([](F32 x) { return unary<Unary::Gelu>(x); });
    case Unary::GeluTanh:
      return body([](F32 x) { return unary<Unary::GeluTanh>(x); });
    case Unary::GeluQuick:
      return body([](F32 x) { return unary<Unary::GeluQuick>(x); });
    case Unary::Sigmoid:
      return body([](F32 x) { return unary<Unary::Sigmoid>(x); });
    case Unary::Tanh:
      return body([](F32 x) { return unary<Unary::Tanh>(x); });
    case Unary::Erf:
      return body([](F32 x) { return unary<Unary::Erf>(x); });
    case Unary::Exp:
      return body([](F32 x) { return unary<Unary::Exp>(x); });
  }
}

template <class Body>
void with_binary(BinaryOp op, Body body) {
  switch (op) {
    case BinaryOp::Add:
      return body([](F32 a, F32 b) { return a + b; });
    case BinaryOp::Subtract:
      return body([](F32 a, F32 b) { return a - b; });
    case BinaryOp::Multiply:
      return body([](F32 a, F32 b) { return a * b; });
    case BinaryOp::Divide:
      return body([](F32 a, F32 b) { return a / b; });
    case BinaryOp::Maximum:
      return body([](F32 a, F32 b) { return max(a, b); });
    case BinaryOp::Minimum:
      return body([](F32 a, F32 b) { return min(a, b); });
  }
}

void unary_row(Unary op, const float* x, float* y, int64_t n) {
  with_unary(op, [&](auto f) { map(x, y, n, f); });
}

void binary(BinaryOp op, const float* a, const float* b, float* y, int64_t n) {
  with_binary(op, [&](auto f) { map(a, b, y, n, f); });
}

void binary_scalar(BinaryOp op, const float* a, float b, float* y, int64_t n) {
  with_binary(op, [&](auto f) { map(a, y, n, [f, v = set1(b)](F32 x) { return f(x, v); }); });
}

void scalar_binary(BinaryOp op, float a, const float* b, float* y, int64_t n) {
  with_binary(op, [&](auto f) { map(b, y, n, [f, v = set1(a)](F32 x) { return f(v, x); }); });
}

void activate_multiply(Unary op, const float* gate, const float* up, float* y, int64_t n) {
  with_unary(op, [&](auto f) { map(gate, up, y, n, [f](F32 g, F32 u) { return f(g) * u; }); });
}

template <class Combine>
inline F32 fold_extreme(const float* x, int64_t n, float start, Combine combine) {
  F32 m = set1(start);
  for_chunks(n, [&](int64_t i, int64_t lanes) {
    m = combine(m, keep_first(load_lanes(x + i, lanes), lanes, set1(start)));
  });
  return m;
}

float max_of(const float* x, int64_t n) {
  return reduce_max(fold_extreme(x, n, -__builtin_inff(), [](F32 a, F32 b) { return max(a, b); }));
}

void softmax(const float* x, float* y, int64_t n) {
  const F32 top = set1(max_of(x, n));
  const F32 total = fold_sum(n, [&](int64_t i, int64_t lanes) {
    const F32 e = exp(load_lanes(x + i, lanes) - top);
    store_lanes(y + i, e, lanes);
    return keep_first(e, lanes, zero_f());
  });
  const F32 factor = set1(1.0f / reduce_add(total));
  map(y, y, n, [=](F32 e) { return e * factor; });
}

float reduce(ReduceOp op, const float* x, int64_t n) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Mean: {
      const float sum =
          reduce_add(fold_sum(n, [&](int64_t i, int64_t lanes) { return load_lanes(x + i, lanes); }));
      return op == ReduceOp::Sum ? sum : sum / static_cast<float>(n);
    }
    case ReduceOp::Max:
      return max_of(x, n);
    case ReduceOp::Min: {
      const F32 m = fold_extreme(x, n, __builtin_inff(), [](F32 a, F32 b) { return min(a, b); });
      return -reduce_max(-m);
    }
    case ReduceOp::SumOfSquares:
      break;
  }
  return reduce_add(fold_sum(n, [&](int64_t i, int64_t lanes) {
    const F32 v = load_lanes(x + i, lanes);
    return v * v;
  }));
}

void rotate_halves(float* x, const float* cos, const float* sin, int64_t pairs) {
  for_chunks(pairs, [&](int64_t i, int64_t lanes) {
    const F32 c = load_lanes(cos + i, lanes), s = load_lanes(sin + i, lanes);
    const F32 a = load_lanes(x + i, lanes), b = load_lanes(x + pairs + i, lanes);
    store_lanes(x + i, a * c - b * s, lanes);
    store_lanes(x + pairs + i, b * c + a * s, lanes);
  });
}

void rotate(const RotaryRow& row) {
  const int64_t pairs = row.rotary_size / 2;
  for (int64_t h = 0; h < row.heads; ++h) {
    float* x = row.x + h * row.head_size;
    if (!row.interleaved) {
      rotate_halves(x, row.cos, row.sin, pairs);
      continue;
    }
    for (int64_t i = 0; i < pairs; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * row.cos[i] - b * row.sin[i];
      x[2 * i + 1] = b * row.cos[i] + a * row.sin[i];
    }
  }
}

}  // namespace

extern const RowKernels row_kernels;
const RowKernels row_kernels = {rms_norm,      layer_norm,        unary_row, binary, binary_scalar,
                                scalar_binary, activate_multiply, softmax,   reduce, rotate};

}  // namespace quern::cpu::QUERN_ISA
