// RNN, GRU, LSTM. The equations are those of the ONNX operator pages; computed in double.
#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/reference/functions.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

using Vector = std::vector<double>;
using Activation = std::function<double(double)>;

Activation activation_of(const KernelContext& context, const std::string& name, double alpha, double beta) {
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "sigmoid") return [](double x) { return sigmoid(x); };
  if (lower == "tanh") return [](double x) { return std::tanh(x); };
  if (lower == "relu") return [](double x) { return std::max(x, 0.0); };
  if (lower == "affine") return [=](double x) { return alpha * x + beta; };
  if (lower == "leakyrelu") return [=](double x) { return x >= 0 ? x : alpha * x; };
  if (lower == "thresholdedrelu") return [=](double x) { return x >= alpha ? x : 0; };
  if (lower == "scaledtanh") return [=](double x) { return alpha * std::tanh(beta * x); };
  if (lower == "hardsigmoid") return [=](double x) { return std::clamp(alpha * x + beta, 0.0, 1.0); };
  if (lower == "elu") return [=](double x) { return x >= 0 ? x : alpha * (std::exp(x) - 1); };
  if (lower == "softsign") return [](double x) { return x / (1 + std::fabs(x)); };
  if (lower == "softplus") return [](double x) { return softplus(x); };
  context.unsupported("activation '", name, "'");
}

// The defaults that the operator pages give for alpha and beta.
std::pair<double, double> default_parameters(const std::string& name) {
  if (name == "LeakyRelu") return {0.01, 0};
  if (name == "ThresholdedRelu" || name == "Elu") return {1.0, 0};
  if (name == "HardSigmoid") return {0.2, 0.5};
  return {1.0, 0.0};
}

struct Cell {
  int64_t gates = 1;
  int64_t hidden = 0;
  int64_t input_size = 0;
  const double* w = nullptr;   // [gates * hidden, input]
  const double* r = nullptr;   // [gates * hidden, hidden]
  const double* wb = nullptr;  // [gates * hidden], or null
  const double* rb = nullptr;
  const double* peepholes = nullptr;  // LSTM: input, output, forget
  std::vector<Activation> activations;
  double clip = 0;
  bool linear_before_reset = false;
  bool input_forget = false;

  double clipped(double x) const { return clip > 0 ? std::clamp(x, -clip, clip) : x; }
  // Row `row` of W x + Wb.
  double input_part(int64_t row, const double* x) const {
    double sum = wb != nullptr ? wb[row] : 0;
    for (int64_t i = 0; i < input_size; ++i) sum += w[row * input_size + i] * x[i];
    return sum;
  }
  // Row `row` of R h, without Rb.
  double recurrent_part(int64_t row, const Vector& h) const {
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) sum += r[row * hidden + i] * h[static_cast<size_t>(i)];
    return sum;
  }
  double recurrent_bias(int64_t row) const { return rb != nullptr ? rb[row] : 0; }
  double gate(int64_t row, const double* x, const Vector& h) const {
    return input_part(row, x) + recurrent_part(row, h) + recurrent_bias(row);
  }
};

void step_rnn(const Cell& cell, const double* x, Vector& h, Vector&) {
  Vector next(h.size());
  for (int64_t i = 0; i < cell.hidden; ++i) {
    next[static_cast<size_t>(i)] = cell.activations[0](cell.clipped(cell.gate(i, x, h)));
  }
  h = next;
}

// Gates in the order z (update), r (reset), h (hidden).
void step_gru(const Cell& cell, const double* x, Vector& h, Vector&) {
  const int64_t n = cell.hidden;
  Vector z(h.size()), reset(h.size()), gated(h.size());
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    z[at] = cell.activations[0](cell.clipped(cell.gate(i, x, h)));
    reset[at] = cell.activations[0](cell.clipped(cell.gate(n + i, x, h)));
    gated[at] = reset[at] * h[at];
  }
  Vector next(h.size());
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t row = 2 * n + i;
    const double recurrent = cell.linear_before_reset
                                 ? reset[at] * (cell.recurrent_part(row, h) + cell.recurrent_bias(row))
                                 : cell.recurrent_part(row, gated) + cell.recurrent_bias(row);
    const double candidate = cell.activations[1](cell.clipped(cell.input_part(row, x) + recurrent));
    next[at] = (1 - z[at]) * candidate + z[at] * h[at];
  }
  h = next;
}

// Gates in the order i (input), o (output), f (forget), c (cell).
void step_lstm(const Cell& cell, const double* x, Vector& h, Vector& c) {
  const int64_t n = cell.hidden;
  Vector next_h(h.size()), next_c(c.size());
  const auto peep = [&](int64_t which, int64_t i, double state) {
    return cell.peepholes != nullptr ? cell.peepholes[which * n + i] * state : 0.0;
  };
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    const double input = cell.activations[0](cell.clipped(cell.gate(i, x, h) + peep(0, i, c[at])));
    const double forget =
        cell.input_forget ? 1 - input
                          : cell.activations[0](cell.clipped(cell.gate(2 * n + i, x, h) + peep(2, i, c[at])));
    const double candidate = cell.activations[1](cell.clipped(cell.gate(3 * n + i, x, h)));
    next_c[at] = forget * c[at] + input * candidate;
    const double output = cell.activations[0](cell.clipped(cell.gate(n + i, x, h) + peep(1, i, next_c[at])));
    next_h[at] = output * cell.activations[2](next_c[at]);
  }
  h = next_h;
  c = next_c;
}

struct Family {
  int64_t gates;
  std::vector<std::string> activations;  // by default
  void (*step)(const Cell&, const double*, Vector&, Vector&);
};

std::vector<Activation> activations_of(const KernelContext& context, const Family& family, size_t direction,
                                       size_t directions) {
  const Node& node = context.node();
  const size_t count = family.activations.size();
  const auto* given = node.attribute<std::vector<std::string>>("activations");
  std::vector<std::string> names;
  for (size_t d = 0; d < directions; ++d) {
    names.insert(names.end(), family.activations.begin(), family.activations.end());
  }
  if (given != nullptr && !given->empty()) names = *given;
  if (names.size() != count * directions)
    context.fail(names.size(), " activations for ", directions, " directions");
  // Parameters are listed for those activations only that have them.
  const std::vector<float> alphas = node.floats_attribute("activation_alpha", {});
  const std::vector<float> betas = node.floats_attribute("activation_beta", {});
  std::vector<Activation> list;
  for (size_t i = direction * count; i < (direction + 1) * count; ++i) {
    const auto [alpha, beta] = default_parameters(names[i]);
    list.push_back(activation_of(context, names[i], i < alphas.size() ? alphas[i] : alpha,
                                 i < betas.size() ? betas[i] : beta));
  }
  return list;
}

// The outputs of a run, in the layout [T, D, B, H] and [D, B, H].
struct Run {
  int64_t steps, directions, batch, hidden;
  Vector y, y_h, y_c;
};

void check_shape(const KernelContext& context, const Tensor& x, const Shape& expected, const char* what) {
  if (x.shape() != expected) {
    context.fail(what, " has the shape ", to_string(x.shape()), ", expected ", to_string(expected));
  }
}

void run_direction(KernelContext& context, const Family& family, const Cell& cell, const Vector& x,
                   int64_t direction, bool backward, Run& run) {
  const Tensor* lengths = context.optional_input(4);
  const int64_t state_size = run.batch * run.hidden;
  for (int64_t b = 0; b < run.batch; ++b) {
    const int64_t length = lengths != nullptr ? lengths->int_at(b) : run.steps;
    if (length < 0 || length > run.steps) context.fail("a sequence length is ", length);
    double* h_at = run.y_h.data() + direction * state_size + b * run.hidden;
    double* c_at = run.y_c.data() + direction * state_size + b * run.hidden;
    Vector h(h_at, h_at + run.hidden);
    Vector c(c_at, c_at + run.hidden);
    for (int64_t t = 0; t < length; ++t) {
      const int64_t at = backward ? length - 1 - t : t;
      family.step(cell, x.data() + (at * run.batch + b) * cell.input_size, h, c);
      std::copy(h.begin(), h.end(),
                run.y.begin() + ((at * run.directions + direction) * run.batch + b) * run.hidden);
    }
    std::copy(h.begin(), h.end(), h_at);
    std::copy(c.begin(), c.end(), c_at);
  }
}

// The batch moved to the front: [T, D, B, H] to [B, T, D, H], [D, B, H] to [B, D, H].
Tensor batch_first(const KernelContext& context, const Tensor& x) {
  const Shape own = strides_of(x.shape());
  const size_t rank = x.shape().size();
  Shape shape = x.shape();
  Shape strides = own;
  std::rotate(shape.begin(), shape.begin() + static_cast<int64_t>(rank) - 2, shape.end() - 1);
  std::rotate(strides.begin(), strides.begin() + static_cast<int64_t>(rank) - 2, strides.end() - 1);
  return strided_copy(context, x, shape, strides);
}

Tensor steps_first(const KernelContext& context, const Tensor& x) {
  Shape shape = x.shape();
  Shape strides = strides_of(shape);
  std::swap(shape[0], shape[1]);
  std::swap(strides[0], strides[1]);
  return strided_copy(context, x, shape, strides);
}

template <int kFamily>
void run_recurrent(KernelContext& context) {
  static const Family kFamilies[] = {{1, {"Tanh"}, step_rnn},
                                     {3, {"Sigmoid", "Tanh"}, step_gru},
                                     {4, {"Sigmoid", "Tanh", "Tanh"}, step_lstm}};
  const Family& family = kFamilies[kFamily];
  const Node& node = context.node();
  const bool batched = node.int_attribute("layout", 0) != 0;
  if (context.input(0).rank() != 3 || context.input(2).rank() != 3) context.fail("X and R must have rank 3");
  const Tensor x = batched ? steps_first(context, context.input(0)) : context.input(0);
  const std::string direction = node.string_attribute("direction", "forward");
  Run run{};
  run.directions = direction == "bidirectional" ? 2 : 1;
  run.steps = x.dim(0);
  run.batch = x.dim(1);
  run.hidden = context.input(2).dim(2);
  const int64_t rows = family.gates * run.hidden;
  check_shape(context, context.input(1), {run.directions, rows, x.dim(2)}, "W");
  check_shape(context, context.input(2), {run.directions, rows, run.hidden}, "R");
  if (const Tensor* bias = context.optional_input(3))
    check_shape(context, *bias, {run.directions, 2 * rows}, "B");
  if (const Tensor* lengths = context.optional_input(4))
    check_shape(context, *lengths, {run.batch}, "sequence_lens");
  const Shape state_shape{run.directions, run.batch, run.hidden};
  const auto state = [&](size_t input) {
    if (!context.has_input(input)) return make_buffer<double>(context, state_shape);
    const Tensor given = batched ? steps_first(context, context.input(input)) : context.input(input);
    check_shape(context, given, state_shape, "an initial state");
    const Elements<double> values(given);
    return Vector(values.begin(), values.end());
  };
  run.y_h = state(5);
  run.y_c = kFamily == 2 ? state(6) : make_buffer<double>(context, state_shape);
  const Shape y_shape{run.steps, run.directions, run.batch, run.hidden};
  run.y = make_buffer<double>(context, y_shape);
  const Elements<double> in(x), w(context.input(1)), r(context.input(2));
  const Vector inputs(in.begin(), in.end());
  Vector bias, peepholes;
  if (context.has_input(3)) {
    const Elements<double> values(context.input(3));
    bias.assign(values.begin(), values.end());
  }
  if (kFamily == 2 && context.has_input(7)) {
    check_shape(context, context.input(7), {run.directions, 3 * run.hidden}, "P");
    const Elements<double> values(context.input(7));
    peepholes.assign(values.begin(), values.end());
  }
  for (int64_t d = 0; d < run.directions; ++d) {
    Cell cell;
    cell.gates = family.gates;
    cell.hidden = run.hidden;
    cell.input_size = x.dim(2);
    cell.w = w.data() + d * rows * cell.input_size;
    cell.r = r.data() + d * rows * run.hidden;
    if (!bias.empty()) {
      cell.wb = bias.data() + d * 2 * rows;
      cell.rb = cell.wb + rows;
    }
    if (!peepholes.empty()) cell.peepholes = peepholes.data() + d * 3 * run.hidden;
    cell.activations =
        activations_of(context, family, static_cast<size_t>(d), static_cast<size_t>(run.directions));
    cell.clip = node.float_attribute("clip", 0);
    cell.linear_before_reset = node.int_attribute("linear_before_reset", 0) != 0;
    cell.input_forget = node.int_attribute("input_forget", 0) != 0;
    run_direction(context, family, cell, inputs, d, direction == "reverse" || d == 1, run);
  }
  const auto give = [&](size_t i, const Shape& shape, const Vector& values) {
    if (!context.wants_output(i)) return;
    const Tensor out = to_tensor(x.dtype(), shape, values);
    context.set_output(i, batched ? batch_first(context, out) : out);
  };
  give(0, y_shape, run.y);
  give(1, state_shape, run.y_h);
  if (kFamily == 2) give(2, state_shape, run.y_c);
}

}  // namespace

void register_recurrent(KernelTable& table) {
  add_reference(table, {"RNN"}, run_recurrent<0>, 7);
  add_reference(table, {"GRU"}, run_recurrent<1>, 7);
  add_reference(table, {"LSTM"}, run_recurrent<2>, 7);
}

}  // namespace quern::runtime::reference
