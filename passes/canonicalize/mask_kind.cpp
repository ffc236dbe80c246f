#include "passes/canonicalize/mask_kind.h"
#include "passes/model_failure.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace quern::passes {
namespace {

constexpr double kMaskedBelow = -1e3;

// Ones, but for the first `padding` places of each row but the first.
std::vector<int64_t> left_padded(int64_t batch, int64_t total, int64_t padding) {
  std::vector<int64_t> mask(static_cast<size_t>(batch * total), 1);
  for (int64_t b = 1; b < batch; ++b) {
    for (int64_t t = 0; t < padding; ++t) mask[static_cast<size_t>(b * total + t)] = 0;
  }
  return mask;
}

std::vector<int64_t> right_padded(int64_t batch, int64_t total, int64_t padding) {
  std::vector<int64_t> mask = left_padded(batch, total, padding);
  for (int64_t b = 0; b < batch; ++b) {
    const auto row = mask.begin() + b * total;
    std::reverse(row, row + total);
  }
  return mask;
}

}  // namespace

// A mask for one probe, with its own shape and what stands for it.
struct MaskReader::Seen {
  Tensor mask;  // undefined: nothing hidden
  bool causal = false;
  int64_t heads = 1, sequence = 1, total = 1, past = 0;
  Shape strides = {0, 0, 0, 0};

  // -infinity where hidden.
  double at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (causal && j > past + i) return -INFINITY;
    if (!mask.defined()) return 0;
    const double value = mask.at(b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3]);
    if (mask.dtype() == DType::Bool) return value != 0 ? 0 : -INFINITY;
    return value;
  }
};

MaskReader::Seen MaskReader::look(const Value* mask, bool causal, int64_t heads, const Probe& probe) const {
  Seen seen{.causal = causal,
            .heads = heads,
            .sequence = probe.sequence,
            .total = probe.past + probe.sequence,
            .past = probe.past};
  if (mask == nullptr) return seen;
  seen.mask = prober_.evaluate(mask, probe);
  const Shape full = {probe.batch, heads, seen.sequence, seen.total};
  const Shape& shape = seen.mask.shape();
  if (!is_floating(seen.mask.dtype()) && !is_integer(seen.mask.dtype()) && seen.mask.dtype() != DType::Bool) {
    throw_error(ErrorCode::InvalidModel, "the mask is of type ", to_string(seen.mask.dtype()));
  }
  if (shape.size() > 4) throw_error(ErrorCode::Unsupported, "the mask has rank ", shape.size());
  const Shape own = strides_of(shape);
  for (size_t i = 0; i < shape.size(); ++i) {
    const size_t axis = 4 - shape.size() + i;
    if (shape[i] != 1 && shape[i] != full[axis]) {
      throw_error(ErrorCode::Unsupported, "the mask has shape ", to_string(shape), ", the scores ",
                  to_string(full));
    }
    seen.strides[axis] = shape[i] == 1 ? 0 : own[i];
  }
  return seen;
}

// Empty, or where mask and hypothesis differ.
std::string MaskReader::check(const Seen& seen, const Probe& probe, const MaskKind& kind) const {
  for (int64_t b = 0; b < probe.batch; ++b) {
    const auto kept = [&](int64_t j) {
      return probe.mask.empty() || probe.mask[static_cast<size_t>(b * seen.total + j)] != 0;
    };
    for (int64_t h = 0; h < seen.heads; ++h) {
      for (int64_t i = 0; i < seen.sequence; ++i) {
        const int64_t own = seen.past + i;
        if (!kept(own)) continue;
        const double base = seen.at(b, h, i, own);
        for (int64_t j = 0; j < seen.total; ++j) {
          if (!kept(j)) continue;
          const bool hidden = kind.causal && (j > own || (kind.window > 0 && j <= own - kind.window));
          const double value = seen.at(b, h, i, j);
          const double bias =
              kind.slopes.empty() ? 0 : kind.slopes[static_cast<size_t>(h)] * static_cast<double>(j - own);
          const bool fits =
              hidden ? value <= kMaskedBelow : std::abs(value - base - bias) <= 1e-3 * (1 + std::abs(bias));
          if (!fits) {
            return concat("for ", seen.sequence, " tokens after ", seen.past, ", the mask is ", value,
                          " where query ", own, " meets key ", j);
          }
        }
      }
    }
  }
  return {};
}

namespace {

// Integers that could be a window among the constants that a mask is computed from.
std::set<int64_t> window_candidates(const Value* mask) {
  std::set<int64_t> candidates;
  std::set<const Value*> seen;
  std::vector<const Value*> open = {mask};
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    if (value == nullptr || !seen.insert(value).second) continue;
    if (const Tensor* tensor = value->tensor();
        tensor && tensor->size() == 1 && tensor->dtype() != DType::String) {
      const double number = std::abs(tensor->at(0));
      if (number >= 2 && number <= 8192 && number == std::floor(number))
        candidates.insert(static_cast<int64_t>(number));
    }
    if (const Node* node = value->producer())
      open.insert(open.end(), node->inputs().begin(), node->inputs().end());
  }
  return candidates;
}

}  // namespace

// How far back the last position sees, looked for with the longest total that the mask can be evaluated for.
// With a past one query is enough; without, the scores are square, so only lengths beyond constants of the
// mask are tried.
int64_t MaskReader::find_window(const Value* mask, bool causal, int64_t heads) {
  if (mask == nullptr) return 0;
  std::vector<int64_t> lengths = {(1 << 17) - 1, (1 << 15) - 1, (1 << 13) - 1, 2047, 1023, 511, 255, 127, 63};
  if (!has_past_) {
    lengths = {63};
    for (const int64_t candidate : window_candidates(mask)) {
      if (candidate > 60) lengths.insert(lengths.begin(), candidate + 3);
    }
  }
  bool failed = false;
  for (const int64_t length : lengths) {
    const Probe probe{.batch = 1, .sequence = has_past_ ? 1 : length, .past = has_past_ ? length - 1 : 0};
    try {
      const Seen seen = look(mask, causal, heads, probe);
      int64_t visible = 0;
      for (int64_t j = length; j-- > 0 && seen.at(0, 0, seen.sequence - 1, j) > kMaskedBelow;) ++visible;
      if (failed) length_limit_ = std::max(length_limit_, length);
      return visible == length ? 0 : visible;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::OutOfMemory) rethrow_unless_of_model(error);
      failed = true;  // a constant table ends before, or the mask is a square too large to be had
    }
  }
  return 0;
}

MaskKind MaskReader::compute(const Value* mask, bool causal, int64_t heads) {
  MaskKind kind;
  const auto small = [&](int64_t batch, int64_t sequence, int64_t past) {
    return Probe{.batch = batch, .sequence = sequence, .past = has_past_ ? past : 0};
  };
  const Seen first = look(mask, causal, heads, small(1, 4, 0));
  kind.causal = first.at(0, 0, 0, 3) <= kMaskedBelow;
  bool biased = false;
  std::vector<float> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    const double slope = first.at(0, h, 3, 3) - first.at(0, h, 3, 2);
    if (!std::isfinite(slope)) return {.reason = "a position does not see itself or the one before it"};
    slopes.push_back(static_cast<float>(slope));
    biased |= slope != 0 && std::abs(slope) < -kMaskedBelow;
  }
  if (biased) kind.slopes = slopes;
  if (kind.causal && !biased) kind.window = find_window(mask, causal, heads);
  std::vector<Probe> probes = {small(1, 1, 0), small(1, 4, 0), small(2, 7, 3), small(1, 1, 9),
                               small(2, 5, 0)};
  Probe padded = small(2, 6, 3);
  padded.mask = left_padded(2, padded.past + 6, 2);
  probes.push_back(padded);
  padded.mask = right_padded(2, padded.past + 6, 2);
  probes.push_back(padded);
  if (kind.window > 0 && kind.window <= 4096)
    probes.push_back(small(1, has_past_ ? 3 : kind.window + 3, kind.window));
  for (const Probe& probe : probes) {
    const std::string difference = check(look(mask, causal, heads, probe), probe, kind);
    if (!difference.empty()) {
      return {.reason = concat("the mask is neither causal nor bidirectional: ", difference)};
    }
  }
  return kind;
}

MaskKind MaskReader::read(const Value* mask, bool causal, int64_t heads) {
  const auto key = std::tuple(mask, causal, heads);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  MaskKind kind;
  try {
    kind = compute(mask, causal, heads);
  } catch (const Error& error) {
    rethrow_unless_of_model(error);
    kind.reason = concat("the mask cannot be evaluated: ", error.message());
  }
  return known_[key] = kind;
}

}  // namespace quern::passes
