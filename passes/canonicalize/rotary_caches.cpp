// RotaryReader: operators that take cosines and sines as inputs.
#include <array>
#include <cmath>

#include "passes/canonicalize/rotary_kind.h"
#include "passes/canonicalize/rotary_math.h"
#include "passes/model_failure.h"

namespace quern::passes {
namespace {

Rotations rows_at(const Tensor& cos, const Tensor& sin, const std::vector<int64_t>& positions) {
  const int64_t pairs = cos.dim(1);
  Rotations rotations;
  for (const int64_t position : positions) {
    std::vector<CosSin>& row = rotations.emplace_back();
    for (int64_t i = 0; i < pairs; ++i)
      row.push_back({cos.at(position * pairs + i), sin.at(position * pairs + i)});
  }
  return rotations;
}

struct Table {
  std::vector<float> inv_freq;
  double scale = 1;
  std::string reason;
};

Table read_table(const Tensor& cos, const Tensor& sin) {
  const double precision = precision_of(cos.dtype());
  if (cos.rank() != 2 || cos.shape() != sin.shape() || cos.dim(0) < 2)
    return {.reason = "its tables are no matrices of one shape"};
  const int64_t rows = cos.dim(0);
  std::vector<int64_t> doublings, others;
  for (int64_t p = 1; p < rows; p *= 2) doublings.push_back(p);
  for (const int64_t p : {0, 1, 3, 7, 11, 100, 517, 1000}) {
    if (p < rows) others.push_back(p);
  }
  others.push_back(rows - 1);
  const Rotations rotations = rows_at(cos, sin, doublings);
  Table table{.scale = magnitude(rotations)};
  if (std::abs(table.scale - 1) < 8 * precision) table.scale = 1;
  const std::vector<double> found = unwrap(rotations, static_cast<size_t>(cos.dim(1)));
  table.inv_freq.assign(found.begin(), found.end());
  table.reason = check_rotations(rows_at(cos, sin, others), others, table.inv_freq, table.scale, precision);
  return table;
}

constexpr int64_t kVeryLong = (1 << 17) - 1;

}  // namespace

RotaryKind RotaryReader::compute_caches(const Value* cos, const Value* sin, bool interleaved,
                                        int64_t head_size) {
  const std::array<const Value*, 2> both = {cos, sin};
  const auto tables = [&](int64_t past) { return prober_.evaluate(both, Probe{.past = past}); };
  const std::vector<Tensor> usual = tables(0);
  const Table table = read_table(usual[0], usual[1]);
  RotaryKind kind{.head_size = head_size,
                  .interleaved = interleaved,
                  .scale = table.scale,
                  .inv_freq = table.inv_freq,
                  .position_limit = usual[0].dim(0),
                  .reason = table.reason};
  if (cos->is_constant() || !kind.reason.empty() || !has_past_) return kind;
  const std::vector<Tensor> longer = tables(kVeryLong);
  if (identical(longer[0], usual[0])) return kind;
  const Table second = read_table(longer[0], longer[1]);
  kind.reason = second.reason;
  kind.long_inv_freq = second.inv_freq;
  kind.long_scale = second.scale;
  kind.position_limit = longer[0].dim(0);
  int64_t low = 0, high = kVeryLong;
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (identical(tables(middle)[0], usual[0]) ? low : high) = middle;
  }
  kind.original_context = high;
  return kind;
}

RotaryKind RotaryReader::read_caches(const Value* cos, const Value* sin, bool interleaved,
                                     int64_t head_size) {
  const auto key = std::pair(cos, sin);
  const auto found = known_caches_.find(key);
  if (found != known_caches_.end() && found->second.interleaved == interleaved) return found->second;
  RotaryKind kind;
  try {
    kind = compute_caches(cos, sin, interleaved, head_size);
  } catch (const Error& error) {
    rethrow_unless_of_model(error);
    kind = {.reason = concat("the tables of the rotary embedding cannot be evaluated: ", error.message())};
  }
  return known_caches_[key] = kind;
}

}  // namespace quern::passes
