#include "runtime/decoder/remove_tokens.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ir/error.h"
#include "ir/float_types.h"
#include "runtime/decoder/plan.h"
#include "runtime/decoder/sequence_state.h"

namespace quern::runtime {
namespace {

using cpu::kCacheBlock;

float load(float x) {
  return x;
}
float load(uint16_t x) {
  return f16_to_f32(x);
}
void store(float& to, float x) {
  to = x;
}
void store(uint16_t& to, float x) {
  to = f32_to_f16(x);
}

// Turns keys from the angles of positions p + moved to those of p, for p from `first` on.
class KeyTurner {
 public:
  KeyTurner(const KeyRotation& rotation, int64_t first, int64_t end, int64_t moved)
      : rotation_(rotation),
        first_(first),
        end_(end),
        pairs_(static_cast<int64_t>(rotation.frequencies.size())) {
    const auto count = static_cast<size_t>(pairs_ * (end - first));
    cos_.resize(count);
    sin_.resize(count);
    for (int64_t i = 0; i < pairs_; ++i) {
      const float frequency = rotation.frequencies[static_cast<size_t>(i)];
      for (int64_t p = first; p < end; ++p) {
        // The model's angles are products of floats: from one rounded angle to the other.
        const float now = static_cast<float>(p + moved) * frequency, then = static_cast<float>(p) * frequency;
        const double angle = static_cast<double>(then) - static_cast<double>(now);
        const auto at = static_cast<size_t>(i * (end - first) + p - first);
        cos_[at] = static_cast<float>(std::cos(angle));
        sin_[at] = static_cast<float>(std::sin(angle));
      }
    }
  }

  const KeyRotation& rotation() const { return rotation_; }

  // A KV head's keys in the block that begins at this position: attention.h says how they lie.
  template <class E>
  void turn(E* keys, int64_t head_size, int64_t block_begin) const {
    constexpr int64_t kLanes = 16;
    for (int64_t begin = block_begin; begin < std::min(end_, block_begin + kCacheBlock); begin += kLanes) {
      E* features = keys + (begin - block_begin) * head_size;
      const int64_t from = std::max(first_, begin), to = std::min(end_, begin + kLanes);
      for (int64_t i = 0; i < pairs_ && from < to; ++i) {
        E* a = features + (rotation_.interleaved ? 2 * i : i) * kLanes;
        E* b = features + (rotation_.interleaved ? 2 * i + 1 : i + pairs_) * kLanes;
        const size_t row = static_cast<size_t>(i * (end_ - first_));
        for (int64_t p = from; p < to; ++p) {
          const int64_t lane = p - begin;
          const float c = cos_[row + static_cast<size_t>(p - first_)];
          const float s = sin_[row + static_cast<size_t>(p - first_)];
          const float x = load(a[lane]), y = load(b[lane]);
          store(a[lane], x * c - y * s);
          store(b[lane], y * c + x * s);
        }
      }
    }
  }

 private:
  const KeyRotation& rotation_;
  int64_t first_, end_, pairs_;
  std::vector<float> cos_, sin_;  // [pairs, positions]
};

void turn_layer(SequenceState& state, size_t layer, const KeyTurner& turner, int64_t first, int64_t size) {
  const cpu::AttentionShape& shape = state.store->shapes[layer];
  for (int64_t b = first / kCacheBlock; b * kCacheBlock < size; ++b) {
    std::byte* block = state.cache.block(static_cast<int>(layer), b);
    if (block == nullptr) continue;
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      std::byte* keys = block + head * shape.head_bytes();
      if (shape.cache_dtype == DType::F16) {
        turner.turn(reinterpret_cast<uint16_t*>(keys), shape.head_size, b * kCacheBlock);
      } else {
        turner.turn(reinterpret_cast<float*>(keys), shape.head_size, b * kCacheBlock);
      }
    }
  }
}

bool is_float(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F16;
}

}  // namespace

std::string fixed_positions(const Session& session) {
  const DecoderPlan& plan = session.program().plan();
  if (!plan.fixed_positions.empty()) return plan.fixed_positions;
  const DType dtype = *session.options().cache_dtype;
  const bool turned = std::any_of(plan.layers.begin(), plan.layers.end(),
                                  [](const PlanLayer& layer) { return !layer.rotation.frequencies.empty(); });
  if (turned && !is_float(dtype))
    return concat("turned keys are kept as ", to_string(dtype), ", which another turn would round again");
  return {};
}

bool remove_tokens(const Session& session, Sequence& sequence, int64_t first, int64_t count) {
  if (sequence.has_undecided_tree())
    throw_error(ErrorCode::InvalidArgument,
                "a sequence whose last tree is undecided: call Sequence::keep() first");
  if (first < 0 || count < 0 || first + count > sequence.size()) {
    throw_error(ErrorCode::InvalidArgument, "taking ", count, " tokens from place ", first,
                " on out of a sequence of ", sequence.size());
  }
  if (count == 0) return true;
  SequenceState& state = SequenceAccess::state(sequence);
  if (!fixed_positions(session).empty() || !state.cache.can_remove(first, count)) return false;
  const int64_t size = sequence.size() - count;
  const CacheStore& store = *state.store;
  std::vector<KeyTurner> turners;
  const std::vector<PlanLayer>& layers = session.program().plan().layers;
  std::vector<size_t> turner_of(layers.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const KeyRotation& rotation = layers[layer].rotation;
    const auto known = std::find_if(turners.begin(), turners.end(), [&](const KeyTurner& t) {
      return t.rotation().frequencies == rotation.frequencies &&
             t.rotation().interleaved == rotation.interleaved;
    });
    turner_of[layer] = static_cast<size_t>(known - turners.begin());
    if (known == turners.end()) turners.emplace_back(rotation, first, size, count);
  }
  state.cache.remove(first, count, [&](const KvCache::SlotMove& move) {
    const cpu::AttentionShape& shape = store.shapes[static_cast<size_t>(move.layer)];
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      store.kernels->copy_slots(shape, head, move.from, move.from_slot, move.to, move.to_slot, move.count);
    }
  });
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer].rotation.frequencies.empty()) continue;
    turn_layer(state, layer, turners[turner_of[layer]], first, size);
  }
  state.tokens.erase(state.tokens.begin() + first, state.tokens.begin() + first + count);
  state.moved = state.moved || first < size;
  return true;
}

}  // namespace quern::runtime
