#include "passes/canonicalize/rotary_kind.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>

#include "passes/canonicalize/rotary_math.h"
#include "passes/model_failure.h"

namespace quern::passes {
namespace {

std::string text_of(const Attribute& attribute) {
  if (const auto* i = std::get_if<int64_t>(&attribute)) return std::to_string(*i);
  if (const auto* f = std::get_if<float>(&attribute)) return std::to_string(*f);
  if (const auto* s = std::get_if<std::string>(&attribute)) return *s;
  if (const auto* list = std::get_if<std::vector<int64_t>>(&attribute)) return quern::to_string(Shape(*list));
  return "?";
}

std::string text_of(const std::vector<Dim>& elements) {
  std::string text = "{";
  for (const Dim& element : elements) text += element.to_string() + " ";
  return text + "}";
}

// The region with its input left out: equal texts are equal functions of the input.
std::string signature(const LinearRegion& region, const Value* output, const RotaryShape& shape) {
  std::map<const Value*, std::string> names = {{region.input, "x"}};
  std::string text =
      concat(to_string(shape.input), " ", shape.heads, "x", shape.head_size, shape.packed ? " packed" : "");
  for (const Node* node : region.nodes) {
    text += "\n" + node->domain() + node->op();
    for (const auto& [name, attribute] : node->attributes()) text += " " + name + "=" + text_of(attribute);
    for (const Value* input : node->inputs()) {
      const auto named = names.find(input);
      if (input == nullptr) {
        text += " -";
      } else if (named != names.end()) {
        text += " " + named->second;
      } else if (input->elements()) {
        text += " " + text_of(*input->elements());
      } else {
        text += " #" + input->name();
      }
    }
    for (const Value* value : node->outputs()) {
      if (value != nullptr) names.emplace(value, "v" + std::to_string(names.size()));
    }
  }
  return text + "\n" + names[output];
}

}  // namespace

// Applies the region to fixed vectors at chosen positions.
class RotaryReader::Sampler {
 public:
  static constexpr int64_t kRows = 2;  // of batch, with other numbers each

  Sampler(const RotaryReader& reader, const LinearRegion& region, const Value* output,
          const RotaryShape& shape)
      : reader_(reader), region_(region), output_(output), shape_(shape) {}

  // Reproducible numbers of size 0.5 to 1.5, either sign.
  static double number(int64_t b, int64_t f) {
    uint64_t x = static_cast<uint64_t>(b * 1000003 + f * 7919 + 12345);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    x ^= x >> 31;
    const double unit = static_cast<double>(x >> 11) / static_cast<double>(1ULL << 53);
    return (x & 1 ? 1 : -1) * (0.5 + unit);
  }

  // What number() becomes in the dtype that the region computes in.
  double given(int64_t b, int64_t h, int64_t d) const {
    Tensor cell = Tensor::zeros(region_.input->dtype(), {1});
    cell.set(0, number(b, h * shape_.head_size + d));
    return cell.at(0);
  }

  // [position][b, h, d]: everything that comes out. `past`: beyond what the positions ask for.
  std::vector<std::vector<float>> at(const std::vector<int64_t>& positions, int64_t past = 0) const {
    if (reader_.positions_given_) return evaluate(positions, past);
    std::vector<std::vector<float>> all;
    if (!reader_.has_past_) {
      const int64_t last = *std::max_element(positions.begin(), positions.end());
      if (last > 4096)
        throw_error(ErrorCode::Unsupported, "positions beyond 4096 are not tried without a past");
      std::vector<int64_t> range(static_cast<size_t>(last + 1));
      for (size_t i = 0; i < range.size(); ++i) range[i] = static_cast<int64_t>(i);
      const auto rows = evaluate(range, 0);
      for (const int64_t position : positions) all.push_back(rows[static_cast<size_t>(position)]);
      return all;
    }
    for (const int64_t position : positions) all.push_back(evaluate({position}, position).front());
    return all;
  }

  const RotaryShape& shape() const { return shape_; }

 private:
  std::vector<std::vector<float>> evaluate(const std::vector<int64_t>& positions, int64_t past) const {
    Probe probe{.batch = kRows,
                .sequence = static_cast<int64_t>(positions.size()),
                .past = reader_.has_past_ ? past : 0};
    if (reader_.positions_given_) {
      for (int64_t b = 0; b < kRows; ++b)
        probe.positions.insert(probe.positions.end(), positions.begin(), positions.end());
    }
    const Tensor y = reader_.prober_.evaluate(output_, probe, {{region_.input, input(probe)}});
    const int64_t heads = shape_.heads, size = shape_.head_size, n = probe.sequence;
    if (y.size() != kRows * n * heads * size)
      throw_error(ErrorCode::Unsupported, "its output has another size");
    const std::vector<float> values = y.to_floats();
    std::vector<std::vector<float>> rows(static_cast<size_t>(n));
    for (int64_t s = 0; s < n; ++s) {
      for (int64_t b = 0; b < kRows; ++b) {
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t at =
              shape_.packed ? ((b * n + s) * heads + h) * size : ((b * heads + h) * n + s) * size;
          rows[static_cast<size_t>(s)].insert(rows[static_cast<size_t>(s)].end(), values.begin() + at,
                                              values.begin() + at + size);
        }
      }
    }
    return rows;
  }

  // number(b, f) for every token, laid out as the region's input is.
  Tensor input(const Probe& probe) const {
    Shape shape;
    for (const ViewAxis& axis : shape_.input.axes())
      shape.push_back(reader_.prober_.size(size_of(axis), probe));
    Tensor x = Tensor::zeros(region_.input->dtype(), shape);
    const std::vector<ViewAtom> atoms = shape_.input.atoms();
    std::vector<int64_t> sizes, strides;
    for (const ViewAtom& atom : atoms) {
      sizes.push_back(reader_.prober_.size(atom.size, probe));
      strides.push_back(reader_.prober_.size(atom.stride, probe));
    }
    for (int64_t i = 0; i < x.size(); ++i) {
      int64_t rest = i;
      int64_t root[3] = {0, 0, 0};
      for (size_t a = atoms.size(); a-- > 0;) {
        if (atoms[a].axis >= 0) root[atoms[a].axis] += rest % sizes[a] * strides[a];
        rest /= sizes[a];
      }
      x.set(i, number(root[0], root[2]));
    }
    return x;
  }

  const RotaryReader& reader_;
  const LinearRegion& region_;
  const Value* output_;
  const RotaryShape& shape_;
};

RotaryReader::RotaryReader(const Prober& prober, const TransformerInputs& inputs)
    : prober_(prober),
      positions_given_(inputs.positions != nullptr),
      has_past_(!inputs.symbols.past.empty()) {}

namespace {

// Which features make a pair.
struct Pairing {
  int64_t rotated = 0;
  bool interleaved = false;
  int64_t first(int64_t pair) const { return interleaved ? 2 * pair : pair; }
  int64_t second(int64_t pair) const { return interleaved ? 2 * pair + 1 : pair + rotated / 2; }
};

// Rotations that take `x` to what came out, by the first head; nothing if another head or row contradicts
// them.
template <class Given>
std::optional<Rotations> solve(const std::vector<std::vector<float>>& rows, const Given& x,
                               const RotaryShape& shape, const Pairing& pairing, int64_t batch,
                               double tolerance) {
  Rotations rotations;
  for (const std::vector<float>& row : rows) {
    std::vector<CosSin>& of_row = rotations.emplace_back();
    const auto y = [&](int64_t b, int64_t h, int64_t d) {
      return static_cast<double>(row[static_cast<size_t>((b * shape.heads + h) * shape.head_size + d)]);
    };
    for (int64_t pair = 0; pair < pairing.rotated / 2; ++pair) {
      const int64_t i = pairing.first(pair), j = pairing.second(pair);
      const double xi = x(0, 0, i), xj = x(0, 0, j), norm = xi * xi + xj * xj;
      const CosSin r{(y(0, 0, i) * xi + y(0, 0, j) * xj) / norm, (y(0, 0, j) * xi - y(0, 0, i) * xj) / norm};
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          const double a = x(b, h, i), c = x(b, h, j);
          const double off =
              std::abs(y(b, h, i) - (r.cos * a - r.sin * c)) + std::abs(y(b, h, j) - (r.cos * c + r.sin * a));
          if (!(off <= tolerance)) return std::nullopt;
        }
      }
      of_row.push_back(r);
    }
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        for (int64_t d = pairing.rotated; d < shape.head_size; ++d) {
          if (std::abs(y(b, h, d) - x(b, h, d)) > tolerance) return std::nullopt;
        }
      }
    }
  }
  return rotations;
}

// The constant that a graph computes angles from, if its numbers are the ones found; they are exact.
std::optional<std::vector<float>> exact_constant(const LinearRegion& region, const std::vector<double>& found,
                                                 double off) {
  std::set<const Value*> seen = {region.input};
  std::vector<const Value*> open;
  for (const Node* node : region.nodes) open.insert(open.end(), node->inputs().begin(), node->inputs().end());
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    if (value == nullptr || !seen.insert(value).second) continue;
    const Tensor* tensor = value->tensor();
    if (tensor && is_floating(tensor->dtype()) && tensor->size() == static_cast<int64_t>(found.size())) {
      const std::vector<float> numbers = tensor->to_floats();
      bool same = true;
      for (size_t i = 0; i < numbers.size() && same; ++i)
        same = std::abs(numbers[i] - found[i]) <= off + std::abs(found[i]) * 1e-6;
      if (same) return numbers;
    }
    if (const Node* node = value->producer())
      open.insert(open.end(), node->inputs().begin(), node->inputs().end());
  }
  return std::nullopt;
}

}  // namespace

namespace {

// A length that no model was first trained for.
constexpr int64_t kVeryLong = (1 << 17) - 1;

// The smallest n in (low, high] for which `differs`, which holds for high and not for low.
template <class Predicate>
int64_t first_where(int64_t low, int64_t high, Predicate differs) {
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (differs(middle) ? high : low) = middle;
  }
  return high;
}

std::vector<int64_t> doublings_to(int most) {
  std::vector<int64_t> positions;
  for (int k = 0; k <= most; ++k) positions.push_back(int64_t{1} << k);
  return positions;
}

std::vector<float> frequencies(const LinearRegion& region, const Rotations& doublings, double precision) {
  const std::vector<double> found = unwrap(doublings, doublings.front().size());
  const double off = 4 * precision / std::ldexp(1.0, static_cast<int>(doublings.size()) - 1);
  if (const auto exact = exact_constant(region, found, off)) return *exact;
  return {found.begin(), found.end()};
}

double near_one(double scale, double precision) {
  return std::abs(scale - 1) < 8 * precision ? 1 : scale;
}

}  // namespace

RotaryKind RotaryReader::compute(const LinearRegion& region, const Value* output, const RotaryShape& shape) {
  const Sampler sampler(*this, region, output, shape);
  const double precision = precision_of(output->dtype());
  const auto given = [&](int64_t b, int64_t h, int64_t d) { return sampler.given(b, h, d); };
  RotaryKind kind{.head_size = shape.head_size};

  // As many doublings as tables, half precision and the absence of a past allow.
  int most = precision < 1e-4 ? 20 : 10;
  if (!positions_given_ && !has_past_) most = std::min(most, 11);
  std::vector<std::vector<float>> rows;
  for (;; --most) {
    try {
      rows = sampler.at(doublings_to(most));
      break;
    } catch (const Error& error) {
      // Tables may be computed up to the largest position, which takes gigabytes: fewer will do.
      if (error.code() != ErrorCode::OutOfMemory) rethrow_unless_of_model(error);
      if (most <= 2) throw;
      kind.position_limit = int64_t{1} << most;  // at most; made exact below
    }
  }
  const int64_t last = int64_t{1} << most;

  // Features that ever change are rotated.
  int64_t rotated = 0;
  for (const auto& row : rows) {
    for (int64_t i = 0; i < static_cast<int64_t>(row.size()); ++i) {
      const int64_t d = i % shape.head_size, h = i / shape.head_size % shape.heads,
                    b = i / shape.head_size / shape.heads;
      if (static_cast<double>(row[static_cast<size_t>(i)]) != given(b, h, d))
        rotated = std::max(rotated, d + 1);
    }
  }
  rotated += rotated % 2;
  if (rotated == 0) return {.identity = true};
  if (rotated > shape.head_size) return {.reason = "an odd head size is rotated"};
  std::optional<Rotations> rotations;
  for (const bool interleaved : {false, true}) {
    kind.interleaved = interleaved;
    rotations = solve(rows, given, shape, {rotated, interleaved}, Sampler::kRows, 40 * precision);
    if (rotations) break;
  }
  if (!rotations) return {.reason = "what positions do to queries and keys is no rotation of feature pairs"};
  kind.scale = near_one(magnitude(*rotations), precision);
  kind.inv_freq = frequencies(region, *rotations, precision);

  // The hypothesis, at other positions and after another past.
  std::vector<int64_t> others = {0, 1, 3, 5, 6, 7, 11, 23, 100, 517, 1000};
  std::erase_if(others, [&](int64_t p) { return p > last; });
  for (const int64_t past : {int64_t{0}, int64_t{6}}) {
    if (past != 0 && !(positions_given_ && has_past_)) continue;
    const auto again = solve(sampler.at(others, past), given, shape, {rotated, kind.interleaved},
                             Sampler::kRows, 40 * precision);
    kind.reason = again ? check_rotations(*again, others, kind.inv_freq, kind.scale, precision)
                        : "it is a rotation at some positions only";
    if (!kind.reason.empty()) return kind;
  }
  if (kind.position_limit != 0) {
    kind.position_limit = first_where(last, kind.position_limit, [&](int64_t position) {
      try {
        sampler.at({position});
        return false;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::OutOfMemory) rethrow_unless_of_model(error);
        return true;
      }
    });
  }
  if (positions_given_ && has_past_) look_for_long(sampler, region, rotated, precision, kind);
  return kind;
}

// Whether long sequences turn the same positions by other angles.
void RotaryReader::look_for_long(const Sampler& sampler, const LinearRegion& region, int64_t rotated,
                                 double precision, RotaryKind& kind) {
  const std::vector<int64_t> position = {7};
  const auto usual = sampler.at(position, 0);
  const auto differs = [&](int64_t past) { return sampler.at(position, past) != usual; };
  try {
    if (!differs(kVeryLong)) return;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::OutOfMemory) rethrow_unless_of_model(error);
    return;  // a mask or table that long cannot be had
  }
  kind.original_context = first_where(0, kVeryLong, differs);  // the total is one more than the past
  const auto given = [&](int64_t b, int64_t h, int64_t d) { return sampler.given(b, h, d); };
  int most = precision < 1e-4 ? 20 : 10;
  while (kind.position_limit != 0 && (int64_t{1} << most) >= kind.position_limit) --most;
  const auto doublings = solve(sampler.at(doublings_to(most), kVeryLong), given, sampler.shape(),
                               {rotated, kind.interleaved}, Sampler::kRows, 40 * precision);
  if (!doublings) {
    kind.reason = "long sequences are not rotated";
    return;
  }
  kind.long_scale = near_one(magnitude(*doublings), precision);
  kind.long_inv_freq = frequencies(region, *doublings, precision);
}

RotaryKind RotaryReader::read(const LinearRegion& region, const Value* output, const RotaryShape& shape) {
  const std::string key = signature(region, output, shape);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  RotaryKind kind;
  try {
    kind = compute(region, output, shape);
  } catch (const Error& error) {
    rethrow_unless_of_model(error);
    kind = {.reason = concat("what positions do to queries and keys cannot be evaluated: ", error.message())};
  }
  return known_[key] = kind;
}

}  // namespace quern::passes
