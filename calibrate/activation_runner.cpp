#include "calibrate/activation_runner.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "calibrate/graph_model.h"
#include "ir/decoder_mark.h"
#include "ir/error.h"
#include "ir/products.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/session.h"
#include "runtime/interpreter.h"

namespace quern::calibrate {
namespace {

void check_finite(const ActivationRows& rows, const std::string& name) {
  for (int64_t r = 0; r < rows.rows; ++r) {
    // A sum is finite exactly if all are, bar overflow, which 1e38 in an activation would be the sign of.
    float sum = 0;
    for (const float value : rows.row(r)) sum += value * 0;
    if (sum == 0) continue;
    for (int64_t c = 0; c < rows.width; ++c) {
      const float value = rows.data[r * rows.stride + c];
      if (std::isfinite(value)) continue;
      throw_error(ErrorCode::BadData, "the activation '", name, "' is ", value, " in row ", r, ", feature ",
                  c, "; calibration needs finite ones (does the model run in fp16 what overflows there?)");
    }
  }
}

}  // namespace

class ActivationRunner::Engine {
 public:
  explicit Engine(const std::vector<std::string>& taps) : taps_(taps) {}
  virtual ~Engine() = default;
  virtual void run(std::span<const int64_t> window, const Show& show) = 0;
  virtual void run(const std::map<std::string, Tensor>& arrays, const Show& show) = 0;

 protected:
  void show_checked(const ActivationRows& rows, const Show& show) const {
    check_finite(rows, taps_[rows.tap]);
    show(rows);
  }

 private:
  std::vector<std::string> taps_;
};

namespace {

class DecoderEngine : public ActivationRunner::Engine {
 public:
  DecoderEngine(const Graph& decoder, const std::vector<std::string>& taps, const RunnerOptions& options)
      : Engine(taps) {
    runtime::ProgramOptions program_options;
    program_options.entries = {{}};
    program_options.taps = taps;
    program_ = runtime::Program::compile(decoder, program_options);
    runtime::SessionOptions session_options{.threads = options.threads};
    if (options.longest_window > 0) session_options.max_rows = options.longest_window;
    session_ = std::make_unique<runtime::Session>(program_, session_options);
  }

  void run(std::span<const int64_t> window, const ActivationRunner::Show& show) override {
    runtime::Sequence sequence = session_->new_sequence();
    const runtime::SequenceStep step{
        .sequence = &sequence, .tokens = window, .logits = runtime::LogitsFor::All};
    runtime::DecodeRunOptions options;
    options.observer = [&](const runtime::TapView& view) {
      show_checked({.tap = static_cast<size_t>(view.tap),
                    .rows = view.rows,
                    .width = view.width,
                    .data = view.data,
                    .stride = view.stride},
                   show);
    };
    session_->run({&step, 1}, options);
  }

  void run(const std::map<std::string, Tensor>&, const ActivationRunner::Show&) override {
    throw_error(ErrorCode::BadData, "a decoder is shown token ids: give text, or .jsonl rows, not arrays");
  }

 private:
  std::shared_ptr<const runtime::Program> program_;
  std::unique_ptr<runtime::Session> session_;
};

class GraphEngine : public ActivationRunner::Engine {
 public:
  GraphEngine(const Graph& graph, const std::vector<std::string>& taps)
      : Engine(taps), graph_(graph.clone()), interpreter_(*graph_) {
    for (size_t i = 0; i < taps.size(); ++i) index_[taps[i]] = i;
    for (const Node* node : graph_->nodes()) {
      if (is_convolution(*node)) images_.insert(node->input(0)->name());
    }
  }

  void run(std::span<const int64_t> window, const ActivationRunner::Show& show) override {
    if (!inputs_) {
      inputs_ = std::make_unique<TokenInputs>(*graph_);
      rows_ = table_rows(inputs_->ids());
    }
    for (const int64_t id : window) {
      if (rows_ > 0 && (id < 0 || id >= rows_))
        throw_error(ErrorCode::BadData, "token id ", id, " is outside the model's vocabulary of ", rows_);
    }
    run(inputs_->fill(window), show);
  }

  void run(const std::map<std::string, Tensor>& arrays, const ActivationRunner::Show& show) override {
    runtime::NamedValues values;
    for (const auto& [name, array] : arrays) values[name] = array;
    run(values, show);
  }

 private:
  void run(const runtime::NamedValues& inputs, const ActivationRunner::Show& show) {
    for (const auto& [name, value] : inputs) show_value(name, value, show);
    runtime::RunOptions options;
    options.on_value = [&](const Value& value, const runtime::RuntimeValue& computed) {
      show_value(value.name(), computed, show);
    };
    interpreter_.run(inputs, options);
  }

  void show_value(const std::string& name, const runtime::RuntimeValue& value,
                  const ActivationRunner::Show& show) {
    const auto found = index_.find(name);
    if (found == index_.end() || value.is_sequence() || !is_floating(value.dtype())) return;
    Tensor tensor = value.dense();
    if (tensor.rank() == 0 || tensor.size() == 0) return;
    if (tensor.dtype() != DType::F32) tensor = tensor.cast(DType::F32);
    if (images_.contains(name) && tensor.rank() > 2) tensor = channels_last(tensor);
    const int64_t width = tensor.dim(-1);
    show_checked({.tap = found->second,
                  .rows = tensor.size() / width,
                  .width = width,
                  .data = tensor.data<float>().data(),
                  .stride = width},
                 show);
  }

  // [N, C, ...] as [positions, C].
  static Tensor channels_last(const Tensor& image) {
    const int64_t samples = image.dim(0), channels = image.dim(1);
    const int64_t plane = image.size() / samples / channels;
    Tensor rows = Tensor::zeros(DType::F32, {samples * plane, channels});
    const float* from = image.data<float>().data();
    float* to = rows.mutable_data<float>().data();
    for (int64_t n = 0; n < samples; ++n) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t p = 0; p < plane; ++p) to[(n * plane + p) * channels + c] = *from++;
      }
    }
    return rows;
  }

  std::unique_ptr<Graph> graph_;
  runtime::Interpreter interpreter_;
  std::unordered_map<std::string, size_t> index_;
  std::set<std::string> images_;         // inputs of convolutions: a row is a position's channels
  std::unique_ptr<TokenInputs> inputs_;  // made when ids come
  int64_t rows_ = 0;                     // of the table that they look up
};

// Also one that is being made, and has no mark yet.
bool is_decoder(const Graph& graph) {
  const auto& nodes = graph.nodes();
  return has_decoder_mark(graph) || std::any_of(nodes.begin(), nodes.end(), [](const Node* node) {
           return node->is("CachedAttention", kQuernDomain);
         });
}

}  // namespace

RunnerOptions runner_options(const Samples& samples, int threads) {
  return {.threads = threads, .longest_window = samples.longest_window()};
}

ActivationRunner::ActivationRunner(const Graph& graph, const std::vector<std::string>& taps,
                                   const RunnerOptions& options) {
  if (is_decoder(graph)) {
    engine_ = std::make_unique<DecoderEngine>(graph, taps, options);
  } else {
    engine_ = std::make_unique<GraphEngine>(graph, taps);
  }
}

ActivationRunner::~ActivationRunner() = default;

void ActivationRunner::run(std::span<const int64_t> window, const Show& show) {
  engine_->run(window, show);
}

void ActivationRunner::run(const Samples& samples, int64_t i, const Show& show) {
  const auto index = static_cast<size_t>(i);
  const int64_t number = samples.arrays ? samples.rows[index] : i;
  with_context(concat("sample ", number, " of '", samples.source, "'"), [&] {
    if (samples.arrays) return engine_->run(samples.arrays->slice(number, 1), show);
    engine_->run(samples.windows[index], show);
  });
}

}  // namespace quern::calibrate
