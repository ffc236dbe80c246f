#include "runtime/decoder/fallback_step.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "ir/schema.h"
#include "runtime/kernel_context.h"

namespace quern::runtime {
namespace {

// Each element by itself, with broadcasting.
bool is_elementwise(const Node& node) {
  static const std::set<std::string> kOps = {
      "Abs",       "Acos",     "Acosh",    "Add",   "Asin",       "Asinh",       "Atan",
      "Atanh",     "Ceil",     "Celu",     "Clip",  "Cos",        "Cosh",        "Div",
      "Elu",       "Erf",      "Exp",      "Floor", "Gelu",       "HardSigmoid", "HardSwish",
      "LeakyRelu", "Log",      "Max",      "Mean",  "Min",        "Mish",        "Mod",
      "Mul",       "Neg",      "PRelu",    "Pow",   "Reciprocal", "Relu",        "Round",
      "Selu",      "Sigmoid",  "Sign",     "Sin",   "Sinh",       "Softplus",    "Softsign",
      "Sqrt",      "Sub",      "Sum",      "Swish", "Tan",        "Tanh",        "ThresholdedRelu",
      "BiasGelu",  "FastGelu", "QuickGelu"};
  return kOps.contains(node.op());
}

bool is_feature_axis(const Node& node, int64_t axis) {
  const Value* x = node.input(0);
  if (axis < 0 && x->has_shape()) axis += static_cast<int64_t>(x->shape().size());
  return axis > 0;
}

const Tensor* constant_input(const Node& node, size_t i) {
  return node.input(i) != nullptr ? node.input(i)->tensor() : nullptr;
}

bool axes_are_features(const Node& node, size_t input) {
  std::vector<int64_t> axes = node.ints_attribute("axes", {});
  if (const Tensor* tensor = constant_input(node, input)) axes = tensor->to_ints();
  return !axes.empty() &&
         std::all_of(axes.begin(), axes.end(), [&](int64_t a) { return is_feature_axis(node, a); });
}

}  // namespace

std::string not_row_wise(const Node& node) {
  const std::string& op = node.op();
  if (node.domain() != kOnnxDomain && node.domain() != kMicrosoftDomain) return "no row-wise kernel knows it";
  if (is_elementwise(node)) return {};
  static const std::set<std::string> kByAxis = {"Softmax", "LogSoftmax",     "Hardmax", "ArgMax",
                                                "ArgMin",  "CumSum",         "Split",   "Concat",
                                                "Gather",  "LpNormalization"};
  if (kByAxis.contains(op)) {
    const int64_t usual = op == "Split" || op == "Gather" || op == "ArgMax" || op == "ArgMin" ? 0 : -1;
    if (op == "CumSum") {
      const Tensor* axis = constant_input(node, 1);
      return axis != nullptr && axis->size() == 1 && is_feature_axis(node, axis->int_at(0))
                 ? ""
                 : "it sums tokens";
    }
    return is_feature_axis(node, node.int_attribute("axis", usual)) ? "" : "it works across tokens";
  }
  if (op.starts_with("Reduce")) return axes_are_features(node, 1) ? "" : "it reduces across tokens";
  if (op == "Slice") return axes_are_features(node, 3) ? "" : "it slices tokens";
  if (op == "Transpose") {
    const auto perm = node.ints_attribute("perm", {});
    return !perm.empty() && perm[0] == 0 ? "" : "it moves tokens to another dimension";
  }
  if (op == "MatMul") {
    const Tensor* right = constant_input(node, 1);
    return right != nullptr && right->rank() == 2 ? "" : "it multiplies tokens with one another";
  }
  if (op == "Gemm") {
    const bool constants = constant_input(node, 1) != nullptr &&
                           (node.input(2) == nullptr ||
                            (constant_input(node, 2) != nullptr &&
                             (node.input(2)->tensor()->rank() < 2 || node.input(2)->tensor()->dim(0) == 1)));
    return constants && node.int_attribute("transA", 0) == 0 ? "" : "it multiplies tokens with one another";
  }
  return "no row-wise kernel knows it";
}

FallbackStep::FallbackStep(std::unique_ptr<Graph> graph, std::vector<Input> inputs)
    : graph_(std::move(graph)), inputs_(std::move(inputs)) {
  kind = "fallback";
  row_local = false;
  const std::vector<const Kernel*> kernels = KernelTable::instance().find(*graph_->nodes().front());
  if (kernels.empty()) {
    const Node& node = *graph_->nodes().front();
    throw_error(ErrorCode::Unsupported, describe(node), ": there is no kernel for this operator of version ",
                node.opset());
  }
  // The reference adds up in one order whatever the number of rows; others need not.
  kernel_ = kernels.back();
  for (const Input& input : inputs_) {
    if (input.rows.defined()) reads.push_back(input.rows);
  }
}

void FallbackStep::set_outputs(std::vector<Output> outputs) {
  outputs_ = std::move(outputs);
  for (const Output& output : outputs_) {
    if (output.rows.defined()) writes.push_back(output.rows);
  }
}

std::vector<Shape> FallbackStep::probe() const {
  constexpr int64_t kRows = 3;
  std::vector<Shape> features;
  for (const RuntimeValue& value : compute(kRows, nullptr)) {
    if (!value.present()) {
      features.emplace_back();
      continue;
    }
    const Tensor result = value.dense();
    if (result.dtype() != DType::F32 || result.rank() < 1 || result.dim(0) != kRows) {
      throw_error(ErrorCode::Unsupported, describe(*graph_->nodes().front()), " gives ",
                  to_string(result.dtype()), " ", to_string(result.shape()), " for ", kRows,
                  " tokens; f32 with a row for each was expected");
    }
    features.emplace_back(result.shape().begin() + 1, result.shape().end());
  }
  return features;
}

void FallbackStep::run(const Pass& pass, int thread) const {
  if (thread != 0 || pass.count(space) == 0 || *pass.failure != nullptr) return;
  try {
    with_context(concat("computing ", describe(*graph_->nodes().front())),
                 [&] { store(pass, compute(pass.count(space), &pass)); });
  } catch (...) {
    *pass.failure = std::current_exception();
  }
}

// The node on so many rows: those of the pass, or of ones.
std::vector<RuntimeValue> FallbackStep::compute(int64_t rows, const Pass* pass) const {
  std::vector<RuntimeValue> values;
  for (const Input& input : inputs_) {
    if (!input.rows.defined()) {
      values.push_back(input.constant);
      continue;
    }
    Shape shape = input.features;
    shape.insert(shape.begin(), rows);
    Tensor tensor = Tensor::zeros(DType::F32, shape);
    const auto data = tensor.mutable_data<float>();
    if (pass == nullptr) {
      std::fill(data.begin(), data.end(), 1.0f);
    } else {
      const RowView view = pass->view(input.rows);
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(view[r], input.rows.width, data.data() + r * input.rows.width);
    }
    values.emplace_back(std::move(tensor));
  }
  KernelContext context(*graph_->nodes().front(), std::move(values), RunLimits{});
  kernel_->run(context);
  return context.take_outputs();
}

void FallbackStep::store(const Pass& pass, const std::vector<RuntimeValue>& results) const {
  const int64_t rows = pass.count(space);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Output& output = outputs_[i];
    if (!output.rows.defined()) continue;
    const Tensor result = results.at(i).dense();
    Shape shape = output.features;
    shape.insert(shape.begin(), rows);
    if (result.dtype() != DType::F32 || result.shape() != shape) {
      throw_error(ErrorCode::InvalidModel, "the result is ", to_string(result.dtype()), " ",
                  to_string(result.shape()), ", f32 ", to_string(shape), " was expected");
    }
    const RowView view = pass.view(output.rows);
    const auto data = result.data<float>();
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(data.data() + r * output.rows.width, output.rows.width, view[r]);
  }
}

std::string FallbackStep::detail() const {
  return graph_->nodes().front()->op();
}

}  // namespace quern::runtime
