#include <algorithm>
#include <limits>

#include "runtime/decoder/plan.h"

namespace quern::runtime {
namespace {

// A buffer is needed from one barrier to another. Memory changes hands at barriers alone, for between them
// threads run ahead of one another.
struct Interval {
  int first = std::numeric_limits<int>::max();
  int last = -1;
  void cover(int epoch) {
    first = std::min(first, epoch);
    last = std::max(last, epoch);
  }
};

// A barrier stands before a step that reads across rows after others wrote, and before one that keeps to its
// rows after others wrote across them.
void place_barriers(Entry& entry) {
  bool anything_written = false, scattered = false;
  Space local_space = Space::Tokens;
  for (const auto& step : entry.steps) {
    const bool other_rows = step->row_local && anything_written && step->space != local_space;
    step->barrier_before = step->row_local ? scattered || other_rows : anything_written;
    if (step->barrier_before) anything_written = scattered = false;
    anything_written = true;
    if (step->row_local) {
      local_space = step->space;
    } else {
      scattered = true;
    }
  }
}

std::vector<Interval> lifetimes(const Entry& entry) {
  std::vector<Interval> intervals(entry.buffers.size());
  int epoch = 0;
  for (const auto& step : entry.steps) {
    if (step->barrier_before) ++epoch;
    for (const std::vector<Operand>* operands : {&step->reads, &step->writes}) {
      for (const Operand& at : *operands) intervals[static_cast<size_t>(at.buffer)].cover(epoch);
    }
  }
  return intervals;
}

}  // namespace

void plan_memory(const DecoderPlan& plan, Entry& entry) {
  place_barriers(entry);
  for (const auto& step : entry.steps) {
    const Space space = step->space;
    if (space.is_expert()) {
      const ExpertSpace& expert = plan.experts[space.expert_index()];
      const bool counts = expert.parent == Space::Tokens || entry.start.defined();
      if (counts) entry.token_work += step->row_work() * expert.per_token / expert.experts;
    } else if (space == Space::Tokens || entry.start.defined()) {
      entry.token_work += step->row_work();
    }
  }
  const std::vector<Interval> intervals = lifetimes(entry);
  std::vector<size_t> order;
  for (size_t i = 0; i < entry.buffers.size(); ++i) {
    if (entry.buffers[i].output < 0 && intervals[i].last >= 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].first < intervals[b].first; });
  std::vector<size_t> placed;  // by ascending offset
  entry.arena_width = 0;
  for (const size_t i : order) {
    Buffer& buffer = entry.buffers[i];
    buffer.offset = 0;
    for (const size_t other : placed) {
      if (intervals[other].last < intervals[i].first) continue;
      const Buffer& taken = entry.buffers[other];
      if (buffer.offset + buffer.width <= taken.offset) break;
      buffer.offset = std::max(buffer.offset, taken.offset + taken.width);
    }
    const auto after = std::find_if(placed.begin(), placed.end(), [&](size_t other) {
      return entry.buffers[other].offset > buffer.offset;
    });
    placed.insert(after, i);
    entry.arena_width = std::max(entry.arena_width, buffer.offset + buffer.width);
  }
}

}  // namespace quern::runtime
