// Weights and inputs for kernel tests.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ir/packed_tensor.h"
#include "ir/quantized_tensor.h"
#include "runtime/cpu/linear.h"

namespace quern::cpu::test {

using Granularity = QuantScheme::Granularity;

// A way to store a weight.
struct Format {
  DType dtype = DType::F32;  // of a float weight; Undefined: quantized
  QuantScheme scheme;
  DType scale_dtype = DType::F32;
};

inline std::string to_string(const Format& format) {
  if (format.dtype != DType::Undefined) return std::string(quern::to_string(format.dtype));
  return quern::to_string(format.scheme) + " " + std::string(quern::to_string(format.scale_dtype)) +
         " scales";
}

inline Format float_format(DType dtype) {
  return {dtype, {}, DType::F32};
}
inline Format tensor_format(DType code, bool symmetric) {
  return {DType::Undefined, {code, symmetric, Granularity::Tensor, 0, 0}, DType::F32};
}
inline Format channel_format(DType code, bool symmetric) {
  return {DType::Undefined, {code, symmetric, Granularity::Channel, 0, 0}, DType::F32};
}
inline Format group_format(DType code, bool symmetric, int64_t group, DType scales = DType::F16) {
  return {DType::Undefined, {code, symmetric, Granularity::Group, 1, group}, scales};
}

inline std::vector<Format> all_formats() {
  std::vector<Format> out = {float_format(DType::F32), float_format(DType::F16), float_format(DType::BF16)};
  for (const DType code : {DType::I8, DType::U8, DType::I4, DType::U4}) {
    for (const bool symmetric : {true, false}) {
      out.push_back(tensor_format(code, symmetric));
      out.push_back(channel_format(code, symmetric));
      for (const int64_t group : {16, 32, 48, 64, 128, 384})
        out.push_back(group_format(code, symmetric, group));
      out.push_back(group_format(code, symmetric, 32, DType::F32));
    }
  }
  return out;
}

// Any codes, zero points and positive scales that the format can hold. Deterministic.
inline PackedTensor random_weight(int64_t n, int64_t k, const Format& format, uint32_t seed = 1) {
  std::mt19937 random(seed);
  if (format.dtype != DType::Undefined) {
    std::normal_distribution<float> normal;
    Tensor weight = Tensor::zeros(format.dtype, {n, k});
    for (int64_t i = 0; i < weight.size(); ++i) weight.set(i, normal(random));
    return pack(weight);
  }
  QuantizedTensor out;
  out.scheme = format.scheme;
  out.codes = Tensor::zeros(format.scheme.code, {n, k});
  for (int64_t i = 0; i < out.codes.size(); ++i) out.codes.set_int(i, static_cast<int64_t>(random() >> 8));
  Shape shape;
  if (format.scheme.granularity == Granularity::Channel) shape = {n};
  if (format.scheme.granularity == Granularity::Group) {
    shape = {n, (k + format.scheme.group_size - 1) / format.scheme.group_size};
  }
  out.scales = Tensor::zeros(format.scale_dtype, shape);
  for (int64_t i = 0; i < out.scales.size(); ++i) {
    out.scales.set(i, std::uniform_real_distribution<float>(0.005F, 0.02F)(random));
  }
  if (!format.scheme.symmetric) {
    out.zero_points = Tensor::zeros(format.scheme.code, shape);
    for (int64_t i = 0; i < out.zero_points.size(); ++i) {
      out.zero_points.set_int(i, static_cast<int64_t>(random() >> 8));
    }
  }
  return pack(out);
}

inline std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = normal(random);
  return out;
}

// Activations that own their memory.
class OwnedActivations {
 public:
  OwnedActivations(const ActivationFormat& format, int64_t rows, const float* x, Isa isa = active_isa())
      : memory_(Tensor::zeros(DType::U8, {Activations::byte_size(format, rows)})) {
    view = Activations::place(format, rows,
                              {memory_.mutable_bytes(), static_cast<size_t>(memory_.byte_size())}, isa);
    view.encode(x, format.cols, 0, rows);
  }
  Activations view;

 private:
  Tensor memory_;
};

}  // namespace quern::cpu::test
