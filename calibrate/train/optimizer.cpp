#include "calibrate/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "ir/parallel_for.h"

namespace quern::calibrate::train {

Parameter::Parameter(std::string its_name, Shape its_shape, bool does_decay)
    : name(std::move(its_name)),
      shape(std::move(its_shape)),
      value(static_cast<size_t>(element_count(shape))),
      gradient(value.size()),
      first(value.size()),
      second(value.size()),
      decays(does_decay) {}

Parameter::Parameter(std::string its_name, const Tensor& from, bool does_decay)
    : Parameter(std::move(its_name), from.shape(), does_decay) {
  value = from.to_floats();
}

Parameter Parameter::frozen(std::string its_name, const Tensor& from) {
  Parameter parameter(std::move(its_name), Shape{0}, false);
  parameter.shape = from.shape();
  parameter.value = from.to_floats();
  return parameter;
}

Tensor Parameter::tensor() const {
  Tensor copy = Tensor::zeros(DType::F32, shape);
  std::copy(value.begin(), value.end(), copy.mutable_data<float>().begin());
  return copy;
}

void AdamW::step(std::span<Parameter* const> parameters, double learning_rate) {
  ++steps_;
  double squares = 0;
  for (const Parameter* p : parameters) {
    for (const float g : p->gradient) squares += static_cast<double>(g) * g;
  }
  const double norm = std::sqrt(squares);
  const auto scale =
      static_cast<float>(options_.clip > 0 && norm > options_.clip ? options_.clip / norm : 1.0);
  const auto beta1 = static_cast<float>(options_.beta1), beta2 = static_cast<float>(options_.beta2);
  // The moments' corrections for having begun at 0.
  const auto steps = static_cast<double>(steps_);
  const auto rate = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, steps)));
  const auto second_scale = static_cast<float>(1 / (1 - std::pow(options_.beta2, steps)));
  const auto epsilon = static_cast<float>(options_.epsilon);
  for (Parameter* p : parameters) {
    const auto kept = static_cast<float>(1 - (p->decays ? learning_rate * options_.weight_decay : 0));
    parallel_for(static_cast<int64_t>(p->size()), {.least = 1 << 18}, [&](int64_t from, int64_t count) {
      for (auto i = static_cast<size_t>(from); i < static_cast<size_t>(from + count); ++i) {
        const float g = scale * p->gradient[i];
        p->gradient[i] = 0;
        p->first[i] = beta1 * p->first[i] + (1 - beta1) * g;
        p->second[i] = beta2 * p->second[i] + (1 - beta2) * g * g;
        p->value[i] =
            kept * p->value[i] - rate * p->first[i] / (std::sqrt(second_scale * p->second[i]) + epsilon);
      }
    });
  }
}

double cosine_rate(int64_t step, int64_t steps, int64_t warm_up, double peak) {
  if (step < warm_up) return peak * static_cast<double>(step + 1) / static_cast<double>(warm_up);
  if (step >= steps) return 0;
  const double done = static_cast<double>(step - warm_up) / static_cast<double>(steps - warm_up);
  return peak * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace quern::calibrate::train
