#include "runtime/decoder/compiler.h"

#include <algorithm>
#include <functional>

#include "ir/schema.h"

namespace quern::runtime {
namespace {

// Shows a value to the run's observer.
class TapStep final : public Step {
 public:
  TapStep(int tap, Operand x) : tap_(tap), x_(x) {
    kind = "tap";
    row_local = false;
    reads = {x};
  }
  void run(const Pass& pass, int thread) const override {
    if (thread != 0 || pass.observe == nullptr || *pass.failure != nullptr) return;
    try {
      (*pass.observe)(tap_, pass.view(x_), x_.width, space);
    } catch (...) {
      *pass.failure = std::current_exception();
    }
  }

 private:
  int tap_;
  Operand x_;
};

// Rows that the caller gives.
class GivenRowsStep final : public RowStep {
 public:
  explicit GivenRowsStep(Operand out) : out_(out) {
    kind = "given rows";
    writes = {out};
  }
  void run_row(const Pass& pass, int64_t row) const override {
    const int64_t given = space == Space::Selected ? pass.selected_rows[row] : row;
    std::copy_n(pass.given_rows + given * out_.width, out_.width, pass.view(out_)[row]);
  }

 private:
  Operand out_;
};

// The graph's output of this name, else the value.
const Value* output_value(const Graph& graph, const std::string& name) {
  for (const GraphOutput& output : graph.outputs()) {
    if (output.name == name) return output.value;
  }
  return graph.find_value(name);
}

// Whether only rows whose logits are wanted have it.
bool is_selected(const Value& value) {
  std::vector<const Value*> pending = {&value};
  std::set<const Value*> seen;
  while (!pending.empty()) {
    const Node* node = pending.back()->producer();
    pending.pop_back();
    if (node == nullptr) continue;
    if (node->is("SelectRows", kQuernDomain)) return true;
    for (const Value* input : node->inputs()) {
      if (input != nullptr && seen.insert(input).second) pending.push_back(input);
    }
  }
  return false;
}

int64_t width_of(const Shape& features) {
  int64_t width = 1;
  for (const int64_t dim : features) width *= dim;
  return width;
}

}  // namespace

const PackedTensor& CompileContext::weight(const Node& node, const Value& value) {
  const auto found = packed.find(&value);
  if (found != packed.end()) return *found->second;
  plan.weights.push_back(with_context(concat("packing '", value.name(), "' for ", describe(node)), [&] {
    if (const PackedTensor* ready = value.packed()) return widen(*ready);
    if (const QuantizedTensor* quantized = value.quantized()) {
      try {
        return widen(pack(*quantized));
      } catch (const Error& error) {
        // Schemes without kernels of their own compute on their values.
        if (error.code() != ErrorCode::Unsupported) throw;
        return pack(dequantize(*quantized));
      }
    }
    const DType dtype = value.tensor()->dtype();
    const bool packable = dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16;
    return pack(packable ? *value.tensor() : value.tensor()->cast(DType::F32));
  }));
  packed[&value] = &plan.weights.back();
  return plan.weights.back();
}

const std::vector<float>& CompileContext::constant(const Node& node, const Value& value) {
  const auto found = floats.find(&value);
  if (found != floats.end()) return *found->second;
  if (value.tensor() == nullptr) {
    throw_error(ErrorCode::Unsupported, describe(node), ": '", value.name(),
                "' is quantized; only weights of Linear and tables of Embedding may be");
  }
  plan.constants.push_back(value.tensor()->to_floats());
  floats[&value] = &plan.constants.back();
  return plan.constants.back();
}

EntryCompiler::EntryCompiler(CompileContext& context, Entry& entry, const Value* start)
    : context_(context), plan_(context.plan), entry_(entry), start_(start) {}

void EntryCompiler::unsupported(const Node& node, const std::string& why) {
  throw_error(ErrorCode::Unsupported, describe(node), " can't be computed row by row in a decoder: ", why);
}

void EntryCompiler::invalid(const Node& node, const std::string& why) {
  throw_error(ErrorCode::InvalidModel, describe(node), ": ", why);
}

void EntryCompiler::find_needed() {
  std::vector<const Value*> pending;
  for (size_t i = 0; i < entry_.output_names.size(); ++i) {
    const Value* value = output_value(context_.graph, entry_.output_names[i]);
    output_of_.emplace(value, static_cast<int>(i));
    pending.push_back(value);
  }
  for (const Value* tap : context_.taps) pending.push_back(tap);
  kept_.insert(pending.begin(), pending.end());
  while (!pending.empty()) {
    const Value* value = pending.back();
    pending.pop_back();
    if (!needed_values_.insert(value).second || value->producer() == nullptr || value == start_) continue;
    const Node* node = value->producer();
    if (!needed_nodes_.insert(node).second) continue;
    if (!node->subgraphs().empty()) unsupported(*node, "it has sub-graphs");
    for (const Value* input : node->inputs()) {
      if (input != nullptr) pending.push_back(input);
    }
  }
  for (const Node* node : context_.graph.nodes()) {
    if (needed_nodes_.contains(node)) order_.push_back(node);
  }
}

const Node* EntryCompiler::sole_user(const Value* value) const {
  if (is_kept(value)) return nullptr;
  const Node* user = nullptr;
  for (const Use& use : value->uses()) {
    if (!needed_nodes_.contains(use.node)) continue;
    if (user != nullptr) return nullptr;
    user = use.node;
  }
  return user;
}

const RowValue* EntryCompiler::find_row(const Value* value) const {
  const auto found = rows_.find(value);
  return found != rows_.end() ? &found->second : nullptr;
}

const RowValue& EntryCompiler::row_input(const Node& node, size_t i) const {
  const Value* value = node.input(i);
  if (value == nullptr) invalid(node, concat("input ", i, " is missing"));
  const RowValue* row = find_row(value);
  if (row == nullptr) unsupported(node, concat("input '", value->name(), "' is not a value of tokens"));
  return *row;
}

Operand EntryCompiler::new_buffer(int64_t width, Space space) {
  entry_.buffers.push_back({.width = (width + 15) / 16 * 16, .space = space});
  return {static_cast<int>(entry_.buffers.size()) - 1, 0, width};
}

Operand EntryCompiler::define(const Value* value, Space space, Shape features) {
  const int64_t width = width_of(features);
  const Operand at = new_buffer(width, space);
  rows_[value] = {at, space, std::move(features)};
  const auto output = output_of_.find(value);
  if (output != output_of_.end()) entry_.buffers.back().output = output->second;
  return at;
}

void EntryCompiler::define_view(const Value* value, const RowValue& of, int64_t offset, Shape features) {
  RowValue view = of;
  view.at.offset += offset;
  view.at.width = width_of(features);
  view.features = std::move(features);
  rows_[value] = std::move(view);
}

void EntryCompiler::add_step(std::unique_ptr<Step> step, const Node& node, Space space) {
  step->name = node.name().empty() && node.output() != nullptr ? node.output()->name() : node.name();
  step->space = space;
  entry_.steps.push_back(std::move(step));
}

void EntryCompiler::emit(const Node& node) {
  if (done_.contains(&node)) return;
  const auto& table = handlers();
  const auto handler = table.find({node.domain(), node.op()});
  if (handler != table.end()) {
    (this->*handler->second)(node);
  } else {
    fallback(node);
  }
  done_.insert(&node);
}

void EntryCompiler::emit_tap(size_t tap) {
  const RowValue* row = find_row(context_.taps[tap]);
  if (row == nullptr) {
    throw_error(ErrorCode::InvalidArgument, "'", plan_.taps[tap],
                "' can't be observed: it is not a value of tokens");
  }
  auto step = std::make_unique<TapStep>(static_cast<int>(tap), row->at);
  step->name = plan_.taps[tap];
  step->space = row->space;
  entry_.steps.push_back(std::move(step));
}

void EntryCompiler::finish_outputs() {
  for (size_t i = 0; i < entry_.output_names.size(); ++i) {
    const std::string& name = entry_.output_names[i];
    const RowValue* row = find_row(output_value(context_.graph, name));
    if (row == nullptr) {
      throw_error(ErrorCode::InvalidModel, "output '", name, "' does not depend on the tokens",
                  start_ != nullptr ? concat(" by way of '", start_->name(), "'") : "");
    }
    RowValue result = *row;
    if (entry_.buffers[static_cast<size_t>(row->at.buffer)].output != static_cast<int>(i) ||
        row->at.offset != 0) {
      result.at = new_buffer(row->at.width, row->space);
      entry_.buffers.back().output = static_cast<int>(i);
      auto step = std::make_unique<CopyStep>(row->at, result.at);
      step->name = name;
      step->space = row->space;
      entry_.steps.push_back(std::move(step));
    }
    entry_.outputs.push_back({name, result.at, result.space});
  }
}

void EntryCompiler::emit_start() {
  Shape features;
  if (start_->has_shape()) {
    for (size_t i = 1; i < start_->shape().size(); ++i)
      features.push_back(start_->shape()[i].as_constant().value_or(0));
  }
  if (start_->is_constant() || features.empty() || width_of(features) <= 0) {
    throw_error(ErrorCode::InvalidArgument, "'", start_->name(),
                "' is nothing to go on from: it has no rows whose features are known");
  }
  const Space space = is_selected(*start_) ? Space::Selected : Space::Tokens;
  entry_.start = define(start_, space, features);
  auto step = std::make_unique<GivenRowsStep>(entry_.start);
  step->name = start_->name();
  step->space = space;
  entry_.steps.push_back(std::move(step));
}

void EntryCompiler::compile() {
  find_needed();
  if (start_ != nullptr) emit_start();
  for (const Node* node : order_) {
    if (!node->is("CachedAttention", kQuernDomain) && !node->is("AppendCache", kQuernDomain)) continue;
    entry_.has_cache = true;
    const auto layer = static_cast<size_t>(node->int_attribute("layer", -1));
    if (layer >= plan_.layers.size()) invalid(*node, concat("layer ", layer, " is no layer of the model"));
    entry_.has_last_layer |= layer + 1 == plan_.layers.size();
  }
  std::set<size_t> shown;
  for (const Node* node : order_) {
    emit(*node);
    if (!mixtures_.empty()) accumulate(*node);
    for (size_t tap = 0; tap < context_.taps.size(); ++tap) {
      if (!shown.contains(tap) && find_row(context_.taps[tap]) != nullptr) {
        emit_tap(tap);
        shown.insert(tap);
      }
    }
  }
  for (size_t tap = 0; tap < context_.taps.size(); ++tap) {
    if (!shown.contains(tap)) emit_tap(tap);
  }
  finish_outputs();
  plan_memory(plan_, entry_);
}

const std::map<std::pair<std::string, std::string>, EntryCompiler::Handler>& EntryCompiler::handlers() {
  using C = EntryCompiler;
  static const std::map<std::pair<std::string, std::string>, Handler> kHandlers = [] {
    const std::string onnx(kOnnxDomain), microsoft(kMicrosoftDomain), quern(kQuernDomain);
    std::map<std::pair<std::string, std::string>, Handler> map = {
        {{quern, "Linear"}, &C::linear},
        {{quern, "Embedding"}, &C::embedding},
        {{quern, "Rotary"}, &C::rotary},
        {{quern, "CachedAttention"}, &C::attention},
        {{quern, "AppendCache"}, &C::append_cache},
        {{quern, "SelectRows"}, &C::select_rows},
        {{quern, "RouteExperts"}, &C::route_experts},
        {{quern, "ExpertRows"}, &C::expert_rows},
        {{quern, "CombineExperts"}, &C::combine_experts},
        {{onnx, "RMSNormalization"}, &C::rms_norm},
        {{onnx, "SimplifiedLayerNormalization"}, &C::rms_norm},
        {{microsoft, "SimplifiedLayerNormalization"}, &C::rms_norm},
        {{onnx, "LayerNormalization"}, &C::layer_norm},
        {{microsoft, "SkipSimplifiedLayerNormalization"}, &C::skip_rms_norm},
        {{microsoft, "SkipLayerNormalization"}, &C::skip_layer_norm},
        {{onnx, "Gelu"}, &C::gelu},
        {{microsoft, "Gelu"}, &C::gelu},
        {{microsoft, "QuickGelu"}, &C::swish},
        {{onnx, "Swish"}, &C::swish},
        {{microsoft, "FastGelu"}, &C::biased_gelu},
        {{microsoft, "BiasGelu"}, &C::biased_gelu},
        {{onnx, "Softmax"}, &C::softmax},
        {{onnx, "Split"}, &C::split},
        {{onnx, "Slice"}, &C::slice},
        {{onnx, "Concat"}, &C::concat_features},
        {{onnx, "Identity"}, &C::identity},
        {{onnx, "Dropout"}, &C::identity},
        {{onnx, "Cast"}, &C::identity},
    };
    for (const char* op : {"Add", "Sub", "Mul", "Div", "Max", "Min"}) map[{onnx, op}] = &C::binary;
    for (const char* op : {"Relu", "Sigmoid", "Tanh", "Erf", "Exp"}) map[{onnx, op}] = &C::unary;
    for (const char* op : {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare"}) {
      map[{onnx, op}] = &C::reduce;
    }
    for (const char* op : {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}) map[{onnx, op}] = &C::reshape;
    return map;
  }();
  return kHandlers;
}

}  // namespace quern::runtime
