// Scaled dot-product attention of plain graphs, for the attention operators of several domains.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace quern::runtime::plain {

// Where row `r` of head `h` of batch `b` begins: data + b * batch + h * head + r * row. A row is contiguous.
struct HeadStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

// [B, S, heads * size] and [B, heads, S, size].
inline HeadStrides flat_heads(int64_t rows, int64_t width, int64_t size) {
  return {rows * width, size, width};
}
inline HeadStrides split_heads(int64_t heads, int64_t rows, int64_t size) {
  return {heads * rows * size, rows * size, size};
}

// Added to the scores of a row (strides of 0 broadcast); keys from `keys` on are hidden. -infinity hides too.
struct ScoreBias {
  const float* data = nullptr;
  HeadStrides at;
  int64_t keys = 0;
};

struct KeyRange {
  int64_t first;
  int64_t end;
};

// softmax(softcap(scale * q k^T) + biases) v over the visible keys; a row that sees none gives zeros. Query
// head h reads key-value head h / (heads / kv_heads).
struct AttendTask {
  int64_t batch = 0, heads = 0, kv_heads = 0;
  int64_t queries = 0, keys = 0;
  int64_t size = 0, value_size = 0;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  float* out = nullptr;
  HeadStrides q_at, k_at, v_at, out_at;
  float scale = 1;
  float softcap = 0;  // c * tanh(score / c); 0: none
  std::vector<ScoreBias> biases;
  std::function<KeyRange(int64_t batch, int64_t query)> visible;  // null: all keys
};

// By oneDNN's sgemm, on its threads. Throws Error{OutOfMemory}, or Error{Internal} where oneDNN refuses.
void attend(const AttendTask& task);

}  // namespace quern::runtime::plain
