// Random numbers that are the same on every platform.
#pragma once

#include <cstdint>

namespace quern::runtime {

// A counter-based generator: draw i of stream s under a seed is a fixed function of (seed, s, i), so that a
// decoder that takes tokens back takes back their draws by setting the counter. The function is the finalizer
// of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014) over a Weyl
// sequence.
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed = 0, uint64_t stream = 0)
      : key_(mix(seed + kWeyl) ^ mix(stream + 0xD1B54A32D192ED03ULL)) {}

  uint64_t next_bits() { return mix(key_ + kWeyl * ++counter_); }
  // Uniform in [0, 1), a multiple of 2^-53.
  double next_uniform() { return static_cast<double>(next_bits() >> 11) * 0x1.0p-53; }

  uint64_t counter() const { return counter_; }  // draws so far
  void set_counter(uint64_t draws) { counter_ = draws; }

 private:
  static constexpr uint64_t kWeyl = 0x9E3779B97F4A7C15ULL;
  static constexpr uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace quern::runtime
