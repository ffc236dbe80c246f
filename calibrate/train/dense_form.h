// What an encoder's exit head makes of a pooled state before its last product: an adapter, if it has one, and
// the linear layers of the model's own head.
#pragma once

#include <optional>

#include "calibrate/train/adapter.h"
#include "calibrate/train/heads.h"

namespace quern::calibrate::train {

enum class Activation : uint8_t { None, Tanh, Relu, Gelu, GeluTanh };

struct DenseLayer {
  Tensor weight;               // [out, in]
  std::optional<Tensor> bias;  // [out]
  Activation activation = Activation::None;
};

// y = act(W x + b) for each layer in turn, x first changed by the adapter.
class DenseForm final : public HeadForm {
 public:
  // `name`: "exits.4"; the layers, [width -> ...], are the beginning, and become exits.4.linear.0 and so on;
  // `rank`: of the adapter, 0: none. Throws Error{InvalidArgument} for layers that don't fit one another.
  DenseForm(const std::string& name, int64_t width, std::vector<DenseLayer> layers, int64_t rank,
            uint64_t seed);
  // x [rows, width] to y [rows, output_width()]
  void forward(const float* x, int64_t rows, float* y) override;
  void backward(float* dy, int64_t rows) override;
  std::vector<Parameter*> parameters() override;
  int64_t output_width() const { return layers_.empty() ? width_ : layers_.back().weight.shape[0]; }

 private:
  struct Layer {
    Parameter weight;
    std::optional<Parameter> bias;
    Activation activation;
    std::vector<float> inner, active;  // [rows, out], before and after the activation
  };
  const float* input_of(size_t layer) const;

  int64_t width_;
  std::optional<Adapter> adapter_;
  std::vector<Layer> layers_;
  std::vector<float> adapted_;          // [rows, width]
  std::vector<float> gradient_, next_;  // by a layer's products, and by what it read
};

}  // namespace quern::calibrate::train
