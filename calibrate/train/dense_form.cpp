#include "calibrate/train/dense_form.h"

#include <algorithm>
#include <cmath>

#include "calibrate/train/matrix.h"
#include "ir/error.h"

namespace quern::calibrate::train {
namespace {

constexpr float kRootHalf = 0.70710678F;
// Of the approximation by tanh: sqrt(2 / pi), and the cubic term's share.
constexpr float kGeluScale = 0.79788456F, kGeluCubic = 0.044715F;

float activate(Activation activation, float z) {
  switch (activation) {
    case Activation::None:
      return z;
    case Activation::Tanh:
      return std::tanh(z);
    case Activation::Relu:
      return std::max(z, 0.0F);
    case Activation::Gelu:
      return 0.5F * z * (1 + std::erf(z * kRootHalf));
    case Activation::GeluTanh:
      return 0.5F * z * (1 + std::tanh(kGeluScale * (z + kGeluCubic * z * z * z)));
  }
  return z;
}

// Derivative at z, where y = activate(z).
float slope(Activation activation, float z, float y) {
  switch (activation) {
    case Activation::None:
      return 1;
    case Activation::Tanh:
      return 1 - y * y;
    case Activation::Relu:
      return z > 0 ? 1.0F : 0.0F;
    case Activation::Gelu: {
      const float density = 0.39894228F * std::exp(-0.5F * z * z);
      return 0.5F * (1 + std::erf(z * kRootHalf)) + z * density;
    }
    case Activation::GeluTanh: {
      const float t = std::tanh(kGeluScale * (z + kGeluCubic * z * z * z));
      return 0.5F * (1 + t) + 0.5F * z * (1 - t * t) * kGeluScale * (1 + 3 * kGeluCubic * z * z);
    }
  }
  return 1;
}

}  // namespace

DenseForm::DenseForm(const std::string& name, int64_t width, std::vector<DenseLayer> layers, int64_t rank,
                     uint64_t seed)
    : width_(width) {
  if (rank > 0) adapter_.emplace(name + ".adapter", width, rank, seed);
  int64_t in = width;
  for (DenseLayer& layer : layers) {
    const std::string part = concat(name, ".linear.", layers_.size());
    const Shape& shape = layer.weight.shape();
    if (shape.size() != 2 || shape[1] != in || (layer.bias && layer.bias->shape() != Shape{shape[0]})) {
      throw_error(ErrorCode::InvalidArgument, "'", part, "' has shape ", to_string(shape),
                  "; what it reads has ", in, " features");
    }
    in = shape[0];
    layers_.push_back({.weight = Parameter(part + ".weight", layer.weight, true),
                       .bias = std::nullopt,
                       .activation = layer.activation,
                       .inner = {},
                       .active = {}});
    if (layer.bias) layers_.back().bias.emplace(part + ".bias", *layer.bias, false);
  }
}

const float* DenseForm::input_of(size_t layer) const {
  return layer == 0 ? adapted_.data() : layers_[layer - 1].active.data();
}

void DenseForm::forward(const float* x, int64_t rows, float* y) {
  adapted_.assign(x, x + rows * width_);
  if (adapter_) adapter_->forward(x, rows, adapted_.data());
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const int64_t out = layer.weight.shape[0], in = layer.weight.shape[1];
    layer.inner.assign(static_cast<size_t>(rows * out), 0.0F);
    if (layer.bias) {
      for (int64_t row = 0; row < rows; ++row)
        std::copy(layer.bias->value.begin(), layer.bias->value.end(), layer.inner.begin() + row * out);
    }
    multiply_transposed(input_of(l), layer.weight.value.data(), layer.inner.data(), rows, out, in, Into::Add);
    layer.active.resize(layer.inner.size());
    std::transform(layer.inner.begin(), layer.inner.end(), layer.active.begin(),
                   [&](float z) { return activate(layer.activation, z); });
  }
  std::copy_n(input_of(layers_.size()), static_cast<size_t>(rows * output_width()), y);
}

void DenseForm::backward(float* dy, int64_t rows) {
  gradient_.assign(dy, dy + rows * output_width());
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    const int64_t out = layer.weight.shape[0], in = layer.weight.shape[1];
    for (size_t i = 0; i < gradient_.size(); ++i)
      gradient_[i] *= slope(layer.activation, layer.inner[i], layer.active[i]);
    transposed_multiply(gradient_.data(), input_of(l), layer.weight.gradient.data(), out, in, rows,
                        Into::Add);
    if (layer.bias) {
      for (size_t i = 0; i < gradient_.size(); ++i)
        layer.bias->gradient[i % static_cast<size_t>(out)] += gradient_[i];
    }
    // Nobody asks for the gradient by the pooled states themselves.
    if (l == 0 && !adapter_) return;
    next_.resize(static_cast<size_t>(rows * in));
    multiply(gradient_.data(), layer.weight.value.data(), next_.data(), rows, in, out, Into::Set);
    gradient_.swap(next_);
  }
  if (adapter_) adapter_->backward(gradient_.data(), rows);
}

std::vector<Parameter*> DenseForm::parameters() {
  std::vector<Parameter*> all;
  if (adapter_) all = adapter_->parameters();
  for (Layer& layer : layers_) {
    all.push_back(&layer.weight);
    if (layer.bias) all.push_back(&*layer.bias);
  }
  return all;
}

}  // namespace quern::calibrate::train
