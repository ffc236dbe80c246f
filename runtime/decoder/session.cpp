#include "runtime/decoder/session.h"

#include <algorithm>
#include <iterator>

#include "ir/error.h"
#include "runtime/decoder/session_impl.h"

namespace quern::runtime {

Session::Session(std::shared_ptr<const Program> program, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(std::move(program), options)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const Program& Session::program() const {
  return *impl_->program;
}

const SessionOptions& Session::options() const {
  return impl_->options;
}

int Session::threads() const {
  return impl_->team->size();
}

std::shared_ptr<cpu::ThreadTeam> Session::team() const {
  return impl_->team;
}

Sequence Session::new_sequence() {
  auto state = std::make_unique<SequenceState>(impl_->store);
  state->tokens.reserve(1024);
  return Sequence(std::move(state));
}

void Session::run(std::span<const SequenceStep> steps, const DecodeRunOptions& options) {
  impl_->run(steps, options);
}

std::span<const float> Session::run(Sequence& sequence, std::span<const int64_t> tokens) {
  const SequenceStep step{.sequence = &sequence, .tokens = tokens};
  impl_->run({&step, 1}, {});
  return logits(0);
}

void Session::run_rows(int entry, std::span<const float> rows) {
  impl_->run_rows(entry, rows);
}

int64_t Session::logit_rows(size_t step) const {
  return impl_->work.at(step).selected;
}

std::span<const float> Session::logits(size_t step, int64_t i, int output) const {
  return impl_->logits(step, i, output);
}

int64_t Session::cache_bytes() const {
  return impl_->store->pool.bytes_in_use();
}

int64_t Session::peak_cache_bytes() const {
  return impl_->store->pool.peak_bytes();
}

void Session::set_profiling(bool on) {
  impl_->profiling = on;
  if (!on) return;
  impl_->profiles.clear();
  for (const Entry& entry : impl_->plan.entries) {
    std::vector<StepProfile>& steps = impl_->profiles.emplace_back();
    for (const auto& step : entry.steps) {
      steps.push_back({.name = step->name, .kind = std::string(step->kind)});
    }
  }
}

std::vector<StepProfile> Session::profile() const {
  std::vector<StepProfile> all;
  for (const auto& steps : impl_->profiles) {
    for (const StepProfile& step : steps) {
      if (step.calls > 0) all.push_back(step);
    }
  }
  return all;
}

Session::Impl::Impl(std::shared_ptr<const Program> p, const SessionOptions& o)
    : program(std::move(p)), plan(program->plan()), options(o) {
  if (options.threads < 0) throw_error(ErrorCode::InvalidArgument, "threads is ", options.threads);
  if (!options.cache_dtype) options.cache_dtype = plan.traits.cache_dtype;
  constexpr DType kPossible[] = {DType::F32, DType::F16, DType::I8, DType::I4};
  if (std::find(std::begin(kPossible), std::end(kPossible), *options.cache_dtype) == std::end(kPossible)) {
    throw_error(ErrorCode::InvalidArgument, "cache_dtype is ", to_string(*options.cache_dtype),
                "; f32, f16, i8 and i4 are possible");
  }
  if (options.cache_memory < 0)
    throw_error(ErrorCode::InvalidArgument, "cache_memory is ", options.cache_memory);
  if (options.max_rows < 1) throw_error(ErrorCode::InvalidArgument, "max_rows is ", options.max_rows);
  if (options.serial_work < 0)
    throw_error(ErrorCode::InvalidArgument, "serial_work is ", options.serial_work);
  const int64_t longest = plan.traits.context;
  if (options.context < 0 || (longest > 0 && options.context > longest)) {
    throw_error(ErrorCode::InvalidArgument, "context is ", options.context, "; the model's own is ", longest);
  }
  if (options.context == 0) options.context = longest;
  team = options.team != nullptr ? options.team : std::make_shared<cpu::ThreadTeam>(options.threads);
  options.threads = team->size();
  linear_scratch = std::make_unique<cpu::LinearScratch>(team->size());
  constexpr size_t kMagnitudes = 5;
  policies.assign(kMagnitudes, cpu::ThreadPolicy(team->size()));
  tree_scratch.resize(static_cast<size_t>(team->size()));
  store = std::make_shared<CacheStore>(options.cache_memory);
  store->kernels = plan.kernels.attention;
  for (const PlanLayer& layer : plan.layers) {
    cpu::AttentionShape shape = layer.attention;
    shape.cache_dtype = *options.cache_dtype;
    shape.sinks = shape.slopes = shape.key_scales = nullptr;
    store->shapes.push_back(shape);
    store->layers.push_back({store->pool.add_kind(shape.block_bytes()), shape.window});
    has_windows = has_windows || shape.window > 0;
  }
  size_t most_outputs = 0;
  for (const Entry& e : plan.entries) most_outputs = std::max(most_outputs, e.outputs.size());
  outputs.resize(most_outputs);
  output_strides.resize(most_outputs);
}

std::span<const float> Session::Impl::logits(size_t step, int64_t i, int output) const {
  const Entry& e = plan.entries[static_cast<size_t>(entry)];
  if (step >= work.size() || i < 0 || i >= work[step].selected || output < 0 ||
      static_cast<size_t>(output) >= e.outputs.size()) {
    throw_error(ErrorCode::InvalidArgument, "the last run gave no logits ", i, " of step ", step, ", output ",
                output);
  }
  const Work& w = work[step];
  const PlanOutput& at = e.outputs[static_cast<size_t>(output)];
  const int64_t row = at.space == Space::Selected
                          ? w.first_selected + i
                          : w.first_token + selected_tokens[static_cast<size_t>(w.first_selected + i)];
  const Workspace& memory = outputs[static_cast<size_t>(output)];
  return {memory.data() + row * output_strides[static_cast<size_t>(output)],
          static_cast<size_t>(at.at.width)};
}

}  // namespace quern::runtime
