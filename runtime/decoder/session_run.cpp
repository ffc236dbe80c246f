// One run of a session: checking, cutting into passes, computing them.
#include <algorithm>
#include <bit>
#include <chrono>
#include <numeric>

#include "ir/error.h"
#include "runtime/decoder/linear_steps.h"
#include "runtime/decoder/session_impl.h"

namespace quern::runtime {
namespace {

// An expert that serves no token of the pass. All threads see the same: its dispatch lies behind a barrier.
bool is_idle(const Step& step, const Pass& pass) {
  return step.space.is_expert() && pass.count(step.space) == 0;
}

}  // namespace

void Session::Impl::check_step(const SequenceStep& step) const {
  if (step.sequence == nullptr || !*step.sequence) {
    throw_error(ErrorCode::InvalidArgument, "a step without a sequence: make one by Session::new_sequence()");
  }
  const auto count = static_cast<int64_t>(step.tokens.size());
  if (!step.parents.empty()) {
    if (step.parents.size() != step.tokens.size()) {
      throw_error(ErrorCode::InvalidArgument, "a tree of ", count, " tokens has ", step.parents.size(),
                  " parents");
    }
    if (count > options.max_rows) {
      throw_error(ErrorCode::InvalidArgument, "a tree of ", count, " tokens is larger than max_rows, ",
                  options.max_rows);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int32_t parent = step.parents[static_cast<size_t>(i)];
      if (parent < -1 || parent >= i) {
        throw_error(ErrorCode::InvalidArgument, "token ", i, " of a tree has the parent ", parent,
                    "; a parent comes before its children");
      }
    }
  }
  int64_t last = -1;
  for (const int32_t token : step.logit_tokens) {
    if (token <= last || token >= count) {
      throw_error(ErrorCode::InvalidArgument, "logit_tokens must ascend and lie in the step's ", count,
                  " tokens; ", token, " does not");
    }
    last = token;
  }
  for (const int64_t id : step.tokens) {
    if (id < 0 || (plan.id_limit > 0 && id >= plan.id_limit)) {
      throw_error(ErrorCode::BadData, "token id ", id, " is outside the model's vocabulary of ",
                  plan.id_limit);
    }
  }
}

void Session::Impl::check_entry(int number) const {
  if (number >= 0 && static_cast<size_t>(number) < plan.entries.size()) return;
  throw_error(ErrorCode::InvalidArgument, "entry ", number, "; the program has ", plan.entries.size());
}

void Session::Impl::check(std::span<const SequenceStep> steps, const DecodeRunOptions& run_options) {
  check_entry(run_options.entry);
  const Entry& e = plan.entries[static_cast<size_t>(run_options.entry)];
  size_t given = 0;
  for (const SequenceStep& step : steps) given += step.tokens.size();
  given *= static_cast<size_t>(e.start.width);
  if (run_options.rows.size() != given) {
    throw_error(ErrorCode::InvalidArgument, "entry ", run_options.entry, " takes ", given,
                " features of given rows, not ", run_options.rows.size());
  }
  ++run_number;
  for (const SequenceStep& step : steps) {
    check_step(step);
    SequenceState& state = *step.sequence->state_;
    if (state.store != store) throw_error(ErrorCode::InvalidArgument, "a sequence of another session");
    if (!state.tree_parents.empty()) {
      throw_error(ErrorCode::InvalidArgument,
                  "a sequence whose last tree is undecided: call Sequence::keep() first");
    }
    if (state.last_run == run_number) {
      throw_error(ErrorCode::InvalidArgument, "one sequence in two steps of a run");
    }
    state.last_run = run_number;
    const auto count = static_cast<int64_t>(step.tokens.size());
    if (run_options.continues) {
      const std::span<const int64_t> all = state.tokens;
      if (!step.parents.empty() || step.tokens.size() > all.size() ||
          !std::equal(step.tokens.begin(), step.tokens.end(), all.end() - count)) {
        throw_error(ErrorCode::InvalidArgument, "the ", count,
                    " tokens to continue are not the last ones of their sequence of ", state.size());
      }
      continue;
    }
    if (options.context > 0 && state.size() + count > options.context) {
      const std::string what = state.size() == 0 ? concat("a prompt of ", count, " tokens")
                                                 : concat(count, " more tokens after ", state.size());
      throw_error(ErrorCode::BadData, what, " do not fit the context of ", options.context, " tokens");
    }
  }
}

void Session::Impl::select(const SequenceStep& step, Work& w) {
  w.first_selected = static_cast<int64_t>(selected_tokens.size());
  const auto count = static_cast<int32_t>(step.tokens.size());
  if (!step.logit_tokens.empty()) {
    selected_tokens.insert(selected_tokens.end(), step.logit_tokens.begin(), step.logit_tokens.end());
  } else if (step.logits == LogitsFor::All) {
    for (int32_t i = 0; i < count; ++i) selected_tokens.push_back(i);
  } else if (step.logits == LogitsFor::Last && count > 0) {
    selected_tokens.push_back(count - 1);
  }
  w.selected = static_cast<int64_t>(selected_tokens.size()) - w.first_selected;
}

void Session::Impl::plan_work(std::span<const SequenceStep> steps, bool continues) {
  work.clear();
  selected_tokens.clear();
  total_tokens = 0;
  for (const SequenceStep& step : steps) {
    Work& w = work.emplace_back();
    w.sequence = step.sequence->state_.get();
    w.tokens = step.tokens;
    w.parents = step.parents;
    w.old_size = w.sequence->size() - (continues ? static_cast<int64_t>(step.tokens.size()) : 0);
    w.first_token = total_tokens;
    total_tokens += static_cast<int64_t>(step.tokens.size());
    select(step, w);
  }
}

void Session::Impl::run(std::span<const SequenceStep> steps, const DecodeRunOptions& run_options) {
  check(steps, run_options);
  if (plan.original_context > 0) {
    for (const SequenceStep& step : steps) {
      const auto more = run_options.continues ? 0 : static_cast<int64_t>(step.tokens.size());
      renew_rotary(*step.sequence->state_, more);
    }
  }
  entry = run_options.entry;
  plan_work(steps, run_options.continues);
  try {
    if (!has_windows) {
      for (Work& w : work) w.sequence->cache.reserve(w.old_size + static_cast<int64_t>(w.tokens.size()));
    }
    compute_all(run_options);
    if (run_options.continues) return;
    for (Work& w : work) {
      w.sequence->tokens.insert(w.sequence->tokens.end(), w.tokens.begin(), w.tokens.end());
      w.sequence->tree_parents.assign(w.parents.begin(), w.parents.end());
    }
  } catch (const std::bad_alloc&) {
    roll_back(run_options.continues);
    throw_error(ErrorCode::OutOfMemory, "no memory for the activations of ", total_tokens, " tokens");
  } catch (...) {
    roll_back(run_options.continues);
    throw;
  }
}

void Session::Impl::roll_back(bool continued) {
  for (Work& w : work) {
    if (continued) {
      w.sequence->cache.set_size(w.sequence->size());
      w.selected = 0;
      continue;
    }
    w.sequence->cache.truncate(w.old_size);
    w.sequence->tokens.resize(static_cast<size_t>(w.old_size));
    w.sequence->tree_parents.clear();
    w.selected = 0;
  }
}

// Where a sequence crosses the length from which on other rotary frequencies serve, all of its keys change:
// they are computed anew, so that a token's logits depend on the tokens before it alone.
void Session::Impl::renew_rotary(SequenceState& state, int64_t more) {
  const bool extended = state.size() + more > plan.original_context;
  if (extended == state.long_rotary) return;
  state.long_rotary = extended;
  if (state.size() == 0) return;
  const std::vector<int64_t> tokens = state.tokens;
  state.cache.truncate(0);
  state.tokens.clear();
  entry = 0;
  work.clear();
  selected_tokens.clear();
  work.push_back({.sequence = &state, .tokens = tokens});
  total_tokens = static_cast<int64_t>(tokens.size());
  // A failure here leaves an empty sequence: there is nothing that could be gone back to.
  if (!has_windows) state.cache.reserve(total_tokens);
  compute_all({});
  state.tokens = tokens;
}

void Session::Impl::compute_all(const DecodeRunOptions& run_options) {
  prepare_outputs(plan.entries[static_cast<size_t>(entry)]);
  const cpu::ThreadTeam::Hot hot(*team);
  pass_first_token = pass_first_selected = 0;
  while (fill_pass()) {
    compute_pass(run_options);
    pass_first_token += static_cast<int64_t>(ids.size());
    pass_first_selected += static_cast<int64_t>(selected_rows.size());
  }
}

void Session::Impl::run_rows(int number, std::span<const float> rows) {
  check_entry(number);
  const Entry& e = plan.entries[static_cast<size_t>(number)];
  if (!e.start.defined() || e.has_cache || rows.size() % static_cast<size_t>(e.start.width) != 0) {
    throw_error(ErrorCode::InvalidArgument, "entry ", number, " can't be computed from ", rows.size(),
                " features: it ",
                e.has_cache ? "appends to sequences" : concat("goes on from rows of ", e.start.width));
  }
  entry = number;
  total_tokens = static_cast<int64_t>(rows.size()) / e.start.width;
  selected_tokens.resize(static_cast<size_t>(total_tokens));
  std::iota(selected_tokens.begin(), selected_tokens.end(), 0);
  work.assign(1, {.selected = total_tokens});
  prepare_outputs(e);
  pieces.clear();
  const cpu::ThreadTeam::Hot hot(*team);
  for (int64_t first = 0; first < total_tokens; first += options.max_rows) {
    const auto count = static_cast<size_t>(std::min(options.max_rows, total_tokens - first));
    pass_first_token = pass_first_selected = first;
    ids.assign(count, 0);
    positions.assign(count, 0);
    parents.assign(count, -1);
    row_step.assign(count, 0);
    row_token.resize(count);
    std::iota(row_token.begin(), row_token.end(), static_cast<int32_t>(first));
    selected_rows.resize(count);
    std::iota(selected_rows.begin(), selected_rows.end(), 0);
    compute_pass({.entry = number, .rows = rows});
  }
}

// The next rows of the run, as many as a pass takes; a tree is not cut.
bool Session::Impl::fill_pass() {
  pieces.clear();
  ids.clear();
  positions.clear();
  parents.clear();
  row_step.clear();
  row_token.clear();
  selected_rows.clear();
  for (size_t step = 0; step < work.size(); ++step) {
    Work& w = work[step];
    const int64_t left = static_cast<int64_t>(w.tokens.size()) - w.done;
    const int64_t room = options.max_rows - static_cast<int64_t>(ids.size());
    if (left == 0) continue;
    if (room == 0 || (!w.parents.empty() && left > room)) break;
    add_piece(step, w, std::min(left, room));
  }
  return !ids.empty();
}

void Session::Impl::add_piece(size_t step, Work& w, int64_t count) {
  const auto first_row = static_cast<int64_t>(ids.size());
  pieces.push_back({.sequence = w.sequence,
                    .first_row = first_row,
                    .rows = count,
                    .first_slot = w.old_size + w.done,
                    .tree = !w.parents.empty()});
  const auto selected = selected_tokens.begin() + w.first_selected;
  auto next = std::lower_bound(selected, selected + w.selected, static_cast<int32_t>(w.done));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token = w.done + i;
    ids.push_back(w.tokens[static_cast<size_t>(token)]);
    const int32_t parent = w.parents.empty() ? -1 : w.parents[static_cast<size_t>(token)];
    parents.push_back(parent);
    if (w.parents.empty()) {
      positions.push_back(w.old_size + token);
    } else {
      positions.push_back(parent < 0 ? w.old_size : positions[static_cast<size_t>(first_row + parent)] + 1);
    }
    row_step.push_back(static_cast<int32_t>(step));
    row_token.push_back(static_cast<int32_t>(token));
    if (next != selected + w.selected && *next == token) {
      selected_rows.push_back(static_cast<int32_t>(first_row + i));
      ++next;
    }
  }
  w.done += count;
}

void Session::Impl::prepare_outputs(const Entry& e) {
  for (size_t i = 0; i < e.outputs.size(); ++i) {
    const PlanOutput& output = e.outputs[i];
    output_strides[i] = e.buffers[static_cast<size_t>(output.at.buffer)].width;
    const auto rows =
        output.space == Space::Selected ? static_cast<int64_t>(selected_tokens.size()) : total_tokens;
    outputs[i].floats(rows * output_strides[i]);
  }
}

void Session::Impl::place_buffers(const Entry& e) {
  const auto tokens = static_cast<int64_t>(ids.size());
  float* memory = arena.floats(e.arena_width * tokens);
  buffers.resize(e.buffers.size());
  for (size_t i = 0; i < e.buffers.size(); ++i) {
    const Buffer& buffer = e.buffers[i];
    if (buffer.output < 0) {
      buffers[i] = {memory + std::max<int64_t>(buffer.offset, 0) * tokens, buffer.width};
      continue;
    }
    const int64_t first = buffer.space == Space::Selected ? pass_first_selected : pass_first_token;
    auto* out = reinterpret_cast<float*>(outputs[static_cast<size_t>(buffer.output)].get());
    buffers[i] = {out + first * buffer.width, buffer.width};
  }
}

// Each mixture has room for the experts of all its tokens; where in it an expert's rows begin its dispatch
// decides.
void Session::Impl::place_expert_rows(int64_t rows) {
  const std::vector<ExpertSpace>& spaces = plan.experts;
  if (spaces.empty()) return;
  const auto tokens = static_cast<size_t>(rows);
  size_t room = 0;
  for (size_t i = 0; i < spaces.size(); i += static_cast<size_t>(spaces[i].experts)) {
    room += tokens * static_cast<size_t>(spaces[i].per_token);
  }
  expert_row_lists.resize(std::max(expert_row_lists.size(), room));
  expert_rows.resize(spaces.size());
  size_t first = 0;
  for (size_t i = 0; i < spaces.size(); i += static_cast<size_t>(spaces[i].experts)) {
    for (size_t e = i; e < i + static_cast<size_t>(spaces[i].experts); ++e) {
      expert_rows[e] = {expert_row_lists.data() + first, 0};
    }
    first += tokens * static_cast<size_t>(spaces[i].per_token);
  }
}

// Memory that the steps share, all of it made here so that no step allocates.
void Session::Impl::prepare_scratch() {
  const auto rows = static_cast<int64_t>(ids.size());
  int64_t encoding = 0, scratch = 0, states = 0, longest = 0;
  for (const auto& formats : plan.encodings)
    encoding = std::max(encoding, Encoding::byte_size(formats, rows));
  for (const Piece& piece : pieces) longest = std::max(longest, piece.first_slot + piece.rows);
  for (const cpu::AttentionShape& shape : store->shapes) {
    scratch = std::max(scratch, AttentionStep::scratch_floats(shape));
    if (longest > 2 * cpu::kAttentionSpan) {
      states = std::max(states, AttentionStep::states_floats(shape, longest, team->size()));
    }
    for (const Piece& piece : pieces) {
      if (!piece.tree) continue;
      for (TreeScratch& tree : tree_scratch)
        AttentionStep::reserve(tree, shape, piece.first_slot, piece.rows);
    }
  }
  encoded.bytes(static_cast<size_t>(encoding));
  attention_scratch_stride = scratch;
  attention_scratch.floats(scratch * team->size());
  // In large steps, so that it is not made anew for every token.
  if (states > 0) attention_states.floats((states + 65535) / 65536 * 65536);
}

void Session::Impl::compute_pass(const DecodeRunOptions& run_options) {
  const Entry& e = plan.entries[static_cast<size_t>(entry)];
  if (has_windows) {
    for (const Piece& piece : pieces) piece.sequence->cache.reserve(piece.first_slot + piece.rows);
  }
  place_buffers(e);
  prepare_scratch();
  Pass pass;
  pass.tokens = static_cast<int64_t>(ids.size());
  pass.selected = static_cast<int64_t>(selected_rows.size());
  pass.ids = ids.data();
  pass.positions = positions.data();
  pass.selected_rows = selected_rows.data();
  if (e.start.defined()) pass.given_rows = run_options.rows.data() + pass_first_token * e.start.width;
  pass.pieces = pieces;
  pass.parents = parents.data();
  pass.buffers = buffers;
  place_expert_rows(std::max(pass.tokens, pass.selected));
  pass.experts = expert_rows;
  pass.encoded = {encoded.get(), encoded.size()};
  pass.team = team.get();
  pass.linear_scratch = linear_scratch.get();
  pass.attention_scratch = reinterpret_cast<float*>(attention_scratch.get());
  pass.attention_scratch_stride = attention_scratch_stride;
  pass.attention_states = reinterpret_cast<float*>(attention_states.get());
  pass.tree_scratch = tree_scratch;
  pass.cache_dtype = *options.cache_dtype;
  std::exception_ptr failure;
  pass.failure = &failure;
  std::function<void(int, const RowView&, int64_t, Space)> observe;
  if (run_options.observer) {
    observe = [&](int tap, const RowView& view, int64_t width, Space space) {
      show_tap(run_options, pass, tap, view, width, space);
    };
    pass.observe = &observe;
  }
  run_steps(e, pass);
  if (failure) std::rethrow_exception(failure);
  for (const Piece& piece : pieces) {
    piece.sequence->cache.set_size(piece.first_slot + piece.rows);
    // What layers look back to that are still to come stays.
    if (has_windows && !piece.tree && e.has_last_layer) {
      const auto owner =
          std::find_if(work.begin(), work.end(), [&](const Work& w) { return w.sequence == piece.sequence; });
      piece.sequence->cache.drop_passed(owner->old_size);
    }
  }
}

void Session::Impl::run_steps(const Entry& e, Pass& pass) {
  const int64_t work = e.token_work * pass.tokens;
  const bool serial = work < options.serial_work || team->size() == 1;
  pass.threads = serial ? 1 : team->size();
  if (profiling) return run_profiled(e, pass);
  if (serial) {
    for (const auto& step : e.steps) {
      if (!is_idle(*step, pass)) step->run(pass, 0);
    }
    return;
  }
  // What a multiply-add costs differs between one row and many, so that each magnitude is measured by itself.
  const auto magnitude = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(pass.tokens)) / 2);
  cpu::ThreadPolicy& policy = policies[std::min(magnitude, policies.size() - 1)];
  pass.threads = policy.threads();
  const int64_t stalled_before = team->stalled_ns();
  const auto start = std::chrono::steady_clock::now();
  team->run(pass.threads, [&](int thread) {
    for (const auto& step : e.steps) {
      if (is_idle(*step, pass)) continue;
      if (step->barrier_before) team->barrier();
      step->run(pass, thread);
    }
  });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  policy.record(static_cast<double>(work), time.count(),
                1e-9 * static_cast<double>(team->stalled_ns() - stalled_before));
}

void Session::Impl::show_tap(const DecodeRunOptions& run_options, const Pass& pass, int tap,
                             const RowView& view, int64_t width, Space space) {
  TapView shown;
  shown.tap = tap;
  shown.name = plan.taps[static_cast<size_t>(tap)];
  shown.rows = pass.count(space);
  shown.width = width;
  shown.data = view.data;
  shown.stride = view.stride;
  shown.row_step = row_step;
  shown.row_token = row_token;
  std::vector<int32_t> steps, tokens;
  if (!(space == Space::Tokens)) {
    const bool of_expert = space.is_expert();
    const bool of_selected = !of_expert || plan.experts[space.expert_index()].parent == Space::Selected;
    for (int64_t i = 0; i < shown.rows; ++i) {
      int32_t row = of_expert ? pass.experts[space.expert_index()].rows[i] : static_cast<int32_t>(i);
      if (of_selected) row = selected_rows[static_cast<size_t>(row)];
      steps.push_back(row_step[static_cast<size_t>(row)]);
      tokens.push_back(row_token[static_cast<size_t>(row)]);
    }
    shown.row_step = steps;
    shown.row_token = tokens;
  }
  run_options.observer(shown);
}

// With a barrier around each step, so that a step's time is that of its slowest thread.
void Session::Impl::run_profiled(const Entry& e, const Pass& pass) {
  using Clock = std::chrono::steady_clock;
  std::vector<StepProfile>& profile = profiles[static_cast<size_t>(entry)];
  team->run([&](int thread) {
    for (size_t i = 0; i < e.steps.size(); ++i) {
      team->barrier();
      if (is_idle(*e.steps[i], pass)) continue;
      const auto start = Clock::now();
      if (thread < pass.threads) e.steps[i]->run(pass, thread);
      team->barrier();
      if (thread != 0) continue;
      StepProfile& line = profile[i];
      line.nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
      line.calls += 1;
      line.rows += pass.count(e.steps[i]->space);
      line.bytes += e.steps[i]->bytes(pass);
    }
  });
}

}  // namespace quern::runtime
