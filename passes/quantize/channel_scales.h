// Which factors make an activation's channels and the weights behind it round well together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/quantize.h"
#include "passes/quantize/channel_groups.h"

namespace quern::passes {

// A product as the choice sees it.
struct ScaledProduct {
  std::vector<float> weight;  // [rows, cols]
  QuantizeOptions options;
  // How its input is rounded to 8 bits: not at all, or by a scale of each token, or also of each group where
  // the weight has groups.
  enum class Input { Float, Token, TokenAndGroup } input = Input::Float;
};

// What is known of an activation: rows of it, or, where there are none, figures of its channels alone.
struct ChannelFacts {
  int64_t cols = 0;
  std::vector<float> absmax;       // [cols]
  std::vector<float> mean_abs;     // [cols]
  std::vector<float> mean_square;  // [cols]
  std::vector<float> rows;         // [n, cols], some of them
};

// smooth: SmoothQuant (Xiao et al. 2023), max|x_j|^a / max|w_j|^(1-a).
// awq: activation-aware weight quantization (Lin et al. 2024), mean|x_j|^a.
enum class ScaleFamily { Smooth, Awq };

struct ChannelChoice {
  std::vector<float>
      scales;           // of the source's channels: divided there, multiplied in the columns; empty: none
  double strength = 0;  // a, with the least error
  double before = 0;    // squared error of the outputs as a share of their square, without scales ...
  double after = 0;     // ... and with them
};

// Tries strengths from 0 to 1 in steps of 0.05. The error is that of the products' outputs with weights and,
// where they are rounded, activations as they will be: on `rows`, or by the channels' mean squares as if
// channels were independent. Scales are never worse than none there.
ChannelChoice choose_channel_scales(const ChannelGroup& group, const std::vector<ScaledProduct>& products,
                                    const ChannelFacts& facts, ScaleFamily family);

}  // namespace quern::passes
