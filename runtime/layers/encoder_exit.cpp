#include "runtime/layers/encoder_exit.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ir/error.h"
#include "runtime/layers/blocks.h"
#include "runtime/layers/exit_confidence.h"

namespace quern::runtime {
namespace {

const Value* output_value(const Graph& graph, const std::string& name) {
  for (const GraphOutput& output : graph.outputs()) {
    if (output.name == name) return output.value;
  }
  throw_error(ErrorCode::Internal, "no output '", name, "'");
}

std::vector<const Value*> values_at(const LayerBoundary& boundary) {
  std::vector<const Value*> values = {boundary.stream};
  if (boundary.normed != nullptr) values.push_back(boundary.normed);
  return values;
}

Tensor dense_floats(const RuntimeValue& value) {
  const Tensor tensor = value.dense();
  return tensor.dtype() == DType::F32 ? tensor : tensor.cast(DType::F32);
}

}  // namespace

bool has_batch(const Value& input) {
  return input.has_shape() && !input.shape().empty() && !input.shape().front().is_constant();
}

Tensor take_rows(const Tensor& tensor, std::span<const int64_t> rows) {
  Shape shape = tensor.shape();
  const int64_t had = std::max<int64_t>(1, shape.front());
  shape.front() = static_cast<int64_t>(rows.size());
  Tensor taken = Tensor::zeros(tensor.dtype(), std::move(shape));
  const auto each = static_cast<size_t>(tensor.byte_size() / had);
  std::byte* to = taken.mutable_bytes();
  for (const int64_t row : rows) {
    std::memcpy(to, tensor.bytes() + static_cast<size_t>(row) * each, each);
    to += each;
  }
  return taken;
}

Bindings bind_inputs(const Graph& graph, const NamedValues& inputs) {
  Bindings bindings;
  for (const Value* input : graph.inputs()) {
    const auto given = inputs.find(input->name());
    if (given == inputs.end() || given->second.tensor() == nullptr)
      throw_error(ErrorCode::BadData, "input '", input->name(), "' is missing, or no tensor");
    const Tensor& tensor = *given->second.tensor();
    bool fits = input->dtype() == DType::Undefined || input->dtype() == tensor.dtype();
    if (input->has_shape()) {
      fits = fits && input->shape().size() == tensor.shape().size();
      for (size_t i = 0; fits && i < tensor.shape().size(); ++i)
        fits = input->shape()[i].as_constant().value_or(tensor.shape()[i]) == tensor.shape()[i];
    }
    if (!fits) {
      throw_error(ErrorCode::BadData, "input '", input->name(), "' is ", to_string(given->second),
                  ", expected ", to_string(input->type()));
    }
    bindings[input] = given->second;
  }
  return bindings;
}

EarlyExitEncoder::EarlyExitEncoder(std::shared_ptr<const Graph> graph, const ExitRule& rule)
    : graph_(std::move(graph)), rule_(rule), layers_(find_encoder_layers(*graph_)) {
  if (rule.confidence == ExitConfidence::Saturation || rule.confidence == ExitConfidence::Classifier) {
    throw_error(ErrorCode::InvalidArgument, "exits by ", to_string(rule.confidence),
                " are for decoders; encoders take margin, max-probability, entropy or fixed");
  }
  if (rule.decay > 0)
    throw_error(ErrorCode::InvalidArgument, "a threshold that decays over a text is for decoders");
  rule_.layers = exits_in_use(*graph_, rule, layers_.layers());
  make_parts();
  statistics_.layers = layers_.layers();
  statistics_.exit_after = rule_.layers;
  statistics_.exit_after.push_back(layers_.layers());
  statistics_.tokens.resize(statistics_.exit_after.size());
}

std::vector<const Value*> EarlyExitEncoder::stream_behind(size_t part) const {
  return part < exits() ? values_at(layers_.at(rule_.layers[part])) : std::vector<const Value*>();
}

// A value with one row for each sequence, or none of them: then its rows, or it itself, serve those that are
// left. Shapes as numbers do not: they hold how many sequences there are.
bool EarlyExitEncoder::can_be_carried(const Value& value) const {
  if (!value.has_shape() || value.shape().empty()) return false;
  const Dim& first = value.shape().front();
  return first == layers_.ids->shape().front() || (first.is_constant() && !is_integer(value.dtype()));
}

// Parts as if nothing but the stream were handed on: what several of them compute.
void EarlyExitEncoder::find_carried() {
  carried_.resize(exits() + 1);
  std::map<const Node*, size_t> first;  // part that computes a node
  for (size_t i = 0; i <= exits(); ++i) {
    std::vector<const Value*> given = inputs_;
    if (i > 0) {
      const std::vector<const Value*> stream = stream_behind(i - 1);
      given.insert(given.end(), stream.begin(), stream.end());
    }
    const std::vector<const Node*> nodes = GraphPart(*graph_, given, made_[i]).nodes();
    for (const Node* node : nodes) first.emplace(node, i);
    for (const Node* node : nodes) {
      if (first.at(node) != i) continue;
      for (const Value* input : node->inputs()) {
        if (input == nullptr || !layers_.shaped.contains(input)) continue;
        const size_t made = first.at(input->producer());
        std::vector<const Value*>& carried = carried_[made];
        if (made == i || std::find(carried.begin(), carried.end(), input) != carried.end()) continue;
        if (!can_be_carried(*input)) {
          throw_error(ErrorCode::Unsupported, describe(*node), " needs '", input->name(), "' (",
                      to_string(input->type()), ") of the layers before the exit behind layer ",
                      rule_.layers[i - 1], ", which depends on how many sequences there are");
        }
        carried.push_back(input);
      }
    }
  }
}

void EarlyExitEncoder::make_parts() {
  inputs_.assign(graph_->inputs().begin(), graph_->inputs().end());
  for (size_t i = 0; i <= exits(); ++i) {
    made_.push_back(
        {i == exits() ? layers_.logits->value : output_value(*graph_, exit_output(rule_.layers[i]))});
    const std::vector<const Value*> stream = stream_behind(i);
    made_.back().insert(made_.back().end(), stream.begin(), stream.end());
  }
  find_carried();
  std::vector<const Value*> given = inputs_;
  for (size_t i = 0; i <= exits(); ++i) {
    made_[i].insert(made_[i].end(), carried_[i].begin(), carried_[i].end());
    std::vector<const Value*> all = given;
    if (i > 0) {
      const std::vector<const Value*> stream = stream_behind(i - 1);
      all.insert(all.end(), stream.begin(), stream.end());
    }
    parts_.emplace_back(*graph_, all, made_[i]);
    given.insert(given.end(), carried_[i].begin(), carried_[i].end());
  }
}

// Drops the rows of sequences that have left.
void EarlyExitEncoder::keep(Going& going, const std::vector<int64_t>& rows) const {
  for (auto& [value, data] : going.values) {
    const bool stands = layers_.flowing.contains(value) || has_batch(*value);
    if (data.tensor() == nullptr || !stands) continue;
    data = take_rows(*data.tensor(), rows);
  }
  std::vector<size_t> left;
  for (const int64_t row : rows) left.push_back(going.sequences[static_cast<size_t>(row)]);
  going.sequences = std::move(left);
}

// Finishes what is sure enough behind this exit, or behind the last layer.
void EarlyExitEncoder::leave(size_t exit, const Tensor& logits, Going& going) {
  const auto count = static_cast<int64_t>(going.sequences.size());
  if (logits.rank() != 2 || logits.dim(0) != count) {
    throw_error(ErrorCode::BadData, "the logits behind layer ", statistics_.exit_after[exit],
                " have the shape ", to_string(logits.shape()), " for ", count, " sequences");
  }
  const auto width = static_cast<size_t>(logits.dim(1));
  std::vector<int64_t> staying;
  for (int64_t row = 0; row < count; ++row) {
    const auto own = logits.data<float>().subspan(static_cast<size_t>(row) * width, width);
    Result& result = results_[going.sequences[static_cast<size_t>(row)]];
    const bool last = exit == exits();
    if (!last) result.confidences.push_back(confidence_of(rule_.confidence, own));
    if (!last && !(result.confidences.back() >= rule_.threshold)) {
      staying.push_back(row);
      continue;
    }
    result.logits.assign(own.begin(), own.end());
    result.layers = statistics_.exit_after[exit];
  }
  if (staying.size() != going.sequences.size()) keep(going, staying);
}

std::span<const EarlyExitEncoder::Result> EarlyExitEncoder::run(const NamedValues& inputs,
                                                                const RunOptions& options) {
  Going going{.sequences = {}, .values = bind_inputs(*graph_, inputs)};
  const Tensor& ids = *going.values.at(layers_.ids).tensor();
  going.sequences.resize(static_cast<size_t>(ids.rank() > 0 ? ids.dim(0) : 1));
  std::iota(going.sequences.begin(), going.sequences.end(), 0);
  results_.assign(going.sequences.size(), {});
  for (size_t exit = 0; !going.sequences.empty(); ++exit) {
    std::vector<RuntimeValue> made = parts_[exit].run(going.values, options);
    for (size_t i = 1; i < made.size(); ++i) going.values[made_[exit][i]] = made[i].dense();
    if (exit > 0) {
      // What stood before this part is not needed any more.
      for (const Value* old : stream_behind(exit - 1)) going.values.erase(old);
    }
    leave(exit, dense_floats(made.front()), going);
    if (exit == exits()) break;
  }
  for (const Result& result : results_) {
    const auto exit = std::find(statistics_.exit_after.begin(), statistics_.exit_after.end(), result.layers);
    ++statistics_.tokens[static_cast<size_t>(exit - statistics_.exit_after.begin())];
  }
  return results_;
}

}  // namespace quern::runtime
