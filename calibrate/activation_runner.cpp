#include "calibrate/activation_runner.h"

#include <cmath>

#include "ir/error.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/session.h"

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
      throw_error(ErrorCode::BadData, "the activation '", name, "' is ", value, " at token ", r, ", feature ",
                  c, "; calibration needs finite ones (does the model run in fp16 what overflows there?)");
    }
  }
}

}  // namespace

struct ActivationRunner::Impl {
  std::vector<std::string> taps;
  std::shared_ptr<const runtime::Program> program;
  std::unique_ptr<runtime::Session> session;
};

ActivationRunner::ActivationRunner(const Graph& decoder, const std::vector<std::string>& taps,
                                   const RunnerOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->taps = taps;
  runtime::ProgramOptions program_options;
  program_options.entries = {{}};
  program_options.taps = taps;
  impl_->program = runtime::Program::compile(decoder, program_options);
  runtime::SessionOptions session_options{.threads = options.threads};
  if (options.longest_window > 0) session_options.max_rows = options.longest_window;
  impl_->session = std::make_unique<runtime::Session>(impl_->program, session_options);
}

ActivationRunner::~ActivationRunner() = default;

void ActivationRunner::run(std::span<const int64_t> window,
                           const std::function<void(const ActivationRows&)>& show) {
  runtime::Sequence sequence = impl_->session->new_sequence();
  const runtime::SequenceStep step{
      .sequence = &sequence, .tokens = window, .logits = runtime::LogitsFor::All};
  runtime::DecodeRunOptions options;
  options.observer = [&](const runtime::TapView& view) {
    const ActivationRows rows{.tap = static_cast<size_t>(view.tap),
                              .rows = view.rows,
                              .width = view.width,
                              .data = view.data,
                              .stride = view.stride};
    check_finite(rows, impl_->taps[rows.tap]);
    show(rows);
  };
  impl_->session->run({&step, 1}, options);
}

}  // namespace quern::calibrate
