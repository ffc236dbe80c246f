#include "runtime/plain/attend.h"

#include <dnnl.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "ir/error.h"
#include "runtime/cpu/row_kernels.h"
#include "runtime/plain/parallel.h"

namespace quern::runtime::plain {
namespace {

using cpu::BinaryOp;

// Queries that are computed together: their scores stay in the cache.
int64_t block_rows(const AttendTask& task) {
  constexpr int64_t kScores = 64 * 1024;
  return std::clamp<int64_t>(kScores / std::max<int64_t>(task.keys, 1), 8, 256);
}

const float* head_of(const float* data, const HeadStrides& at, int64_t batch, int64_t head) {
  return data + batch * at.batch + head * at.head;
}

class Block {
 public:
  Block(const AttendTask& task, int64_t batch, int64_t head, int64_t first, int64_t rows, float* scores)
      : task_(task), batch_(batch), head_(head), first_(first), rows_(rows), scores_(scores) {}

  // False where oneDNN refuses.
  bool run() {
    find_span();
    float* out =
        task_.out + batch_ * task_.out_at.batch + head_ * task_.out_at.head + first_ * task_.out_at.row;
    if (span_.end <= span_.first) {
      for (int64_t i = 0; i < rows_; ++i) std::fill_n(out + i * task_.out_at.row, task_.value_size, 0.0F);
      return true;
    }
    const int64_t keys = span_.end - span_.first;
    const int64_t kv_head = head_ / (task_.heads / task_.kv_heads);
    const float alpha = task_.softcap > 0 ? task_.scale / task_.softcap : task_.scale;
    const float* q = head_of(task_.q, task_.q_at, batch_, head_) + first_ * task_.q_at.row;
    const float* k = head_of(task_.k, task_.k_at, batch_, kv_head) + span_.first * task_.k_at.row;
    const float* v = head_of(task_.v, task_.v_at, batch_, kv_head) + span_.first * task_.v_at.row;
    if (dnnl_sgemm('N', 'T', rows_, keys, task_.size, alpha, q, task_.q_at.row, k, task_.k_at.row, 0, scores_,
                   keys) != dnnl_success) {
      return false;
    }
    for (int64_t i = 0; i < rows_; ++i) weigh(i, keys);
    return dnnl_sgemm('N', 'N', rows_, task_.value_size, keys, 1, scores_, keys, v, task_.v_at.row, 0, out,
                      task_.out_at.row) == dnnl_success;
  }

 private:
  KeyRange visible(int64_t row) const {
    KeyRange range{0, task_.keys};
    if (task_.visible) range = task_.visible(batch_, first_ + row);
    for (const ScoreBias& bias : task_.biases) range.end = std::min(range.end, bias.keys);
    return {std::max<int64_t>(range.first, 0), std::min(range.end, task_.keys)};
  }

  // The keys that any row sees.
  void find_span() {
    span_ = {task_.keys, 0};
    for (int64_t i = 0; i < rows_; ++i) {
      const KeyRange range = visible(i);
      if (range.end <= range.first) continue;
      span_.first = std::min(span_.first, range.first);
      span_.end = std::max(span_.end, range.end);
    }
  }

  // A row of scores to one of probabilities.
  void weigh(int64_t row, int64_t keys) {
    const cpu::RowKernels& kernels = cpu::row_kernels();
    float* all = scores_ + row * keys;
    const KeyRange range = visible(row);
    if (range.end <= range.first) {
      std::fill_n(all, keys, 0.0F);
      return;
    }
    const int64_t before = range.first - span_.first;
    const int64_t count = range.end - range.first;
    float* scores = all + before;
    if (task_.softcap > 0) {
      kernels.unary(cpu::Unary::Tanh, scores, scores, count);
      kernels.binary_scalar(BinaryOp::Multiply, scores, task_.softcap, scores, count);
    }
    for (const ScoreBias& bias : task_.biases) {
      const float* addend = head_of(bias.data, bias.at, batch_, head_) + (first_ + row) * bias.at.row;
      kernels.binary(BinaryOp::Add, scores, addend + range.first, scores, count);
    }
    std::fill_n(all, before, 0.0F);
    std::fill_n(scores + count, keys - before - count, 0.0F);
    const bool hidden = !task_.biases.empty() && kernels.reduce(cpu::ReduceOp::Max, scores, count) ==
                                                     -std::numeric_limits<float>::infinity();
    if (hidden) {
      std::fill_n(scores, count, 0.0F);
    } else {
      kernels.softmax(scores, scores, count);
    }
  }

  const AttendTask& task_;
  int64_t batch_, head_, first_, rows_;
  float* scores_;
  KeyRange span_{0, 0};
};

}  // namespace

void attend(const AttendTask& task) {
  const int64_t most = block_rows(task);
  const int64_t blocks = (task.queries + most - 1) / most;
  const int64_t scratch = std::min(most, task.queries) * task.keys;
  std::vector<float> scores(static_cast<size_t>(scratch * most_shares()));
  std::atomic<bool> refused{false};
  const int64_t block_work = std::min(most, task.queries) * task.keys * (task.size + task.value_size);
  constexpr int64_t kWorthAThread = 1 << 19;  // multiply-adds
  const int64_t least = (kWorthAThread + block_work - 1) / std::max<int64_t>(1, block_work);
  for_shares(task.batch * task.heads * blocks, least, [&](int share, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t row = i % blocks * most;
      Block block(task, i / (task.heads * blocks), i / blocks % task.heads, row,
                  std::min(most, task.queries - row), scores.data() + share * scratch);
      if (!block.run()) refused.store(true, std::memory_order_relaxed);
    }
  });
  if (refused.load()) throw_error(ErrorCode::Internal, "oneDNN refuses a product of attention");
}

}  // namespace quern::runtime::plain
