// What is behind a Session.
#pragma once

#include <chrono>
#include <memory>
#include <new>
#include <vector>

#include "runtime/cpu/thread_policy.h"
#include "runtime/decoder/attention_step.h"
#include "runtime/decoder/plan.h"
#include "runtime/decoder/sequence_state.h"
#include "runtime/decoder/session.h"

namespace quern::runtime {

// Memory that grows and is never cleared, aligned for the kernels.
class Workspace {
 public:
  std::byte* bytes(size_t count) {
    if (count > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<std::byte*>(::operator new(count, kAlignment)));
      size_ = count;
    }
    return memory_.get();
  }
  float* floats(int64_t count) {
    return reinterpret_cast<float*>(bytes(static_cast<size_t>(count) * sizeof(float)));
  }
  std::byte* get() const { return memory_.get(); }
  const float* data() const { return reinterpret_cast<const float*>(memory_.get()); }
  size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

struct Session::Impl {
  Impl(std::shared_ptr<const Program> program, const SessionOptions& options);

  void run(std::span<const SequenceStep> steps, const DecodeRunOptions& options);
  void run_rows(int entry, std::span<const float> rows);
  std::span<const float> logits(size_t step, int64_t i, int output) const;

  // One step's share of a run.
  struct Work {
    SequenceState* sequence = nullptr;
    std::span<const int64_t> tokens;
    std::span<const int32_t> parents;
    int64_t old_size = 0;
    int64_t first_token = 0;     // among all tokens of the run
    int64_t first_selected = 0;  // among all selected ones
    int64_t selected = 0;
    int64_t done = 0;  // tokens computed so far
  };

  void check(std::span<const SequenceStep> steps, const DecodeRunOptions& options);
  void check_step(const SequenceStep& step) const;
  void check_entry(int number) const;
  void plan_work(std::span<const SequenceStep> steps, bool continues);
  void select(const SequenceStep& step, Work& w);
  void renew_rotary(SequenceState& state, int64_t more);
  void compute_all(const DecodeRunOptions& options);
  bool fill_pass();
  void add_piece(size_t step, Work& w, int64_t count);
  void prepare_outputs(const Entry& e);
  void place_buffers(const Entry& e);
  void place_expert_rows(int64_t rows);
  void prepare_scratch();
  void compute_pass(const DecodeRunOptions& options);
  void run_steps(const Entry& e, Pass& pass);
  void run_profiled(const Entry& e, const Pass& pass);
  void show_tap(const DecodeRunOptions& options, const Pass& pass, int tap, const RowView& view,
                int64_t width, Space space);
  void roll_back(bool continued);

  std::shared_ptr<const Program> program;
  const DecoderPlan& plan;
  SessionOptions options;
  std::shared_ptr<CacheStore> store;
  std::shared_ptr<cpu::ThreadTeam> team;
  std::vector<cpu::ThreadPolicy> policies;  // by the magnitude of a pass's rows
  std::unique_ptr<cpu::LinearScratch> linear_scratch;
  bool has_windows = false;

  // Of the run.
  std::vector<Work> work;
  std::vector<int32_t> selected_tokens;  // for each selected row the index of its token within its step
  int64_t total_tokens = 0;
  int entry = 0;
  int64_t run_number = 0;

  // Of the pass.
  std::vector<Piece> pieces;
  std::vector<int64_t> ids, positions;
  std::vector<int32_t> parents, row_step, row_token, selected_rows;
  int64_t pass_first_token = 0, pass_first_selected = 0;
  std::vector<RowView> buffers;
  std::vector<ExpertRows> expert_rows;    // by expert space
  std::vector<int32_t> expert_row_lists;  // what they point into

  Workspace arena, encoded, attention_scratch, attention_states;
  int64_t attention_scratch_stride = 0;
  std::vector<TreeScratch> tree_scratch;
  std::vector<Workspace> outputs;
  std::vector<int64_t> output_strides;

  bool profiling = false;
  std::vector<std::vector<StepProfile>> profiles;  // by entry and step
};

}  // namespace quern::runtime
