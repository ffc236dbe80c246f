// Shape functions, and parts of them, that many operators share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/shape_inference.h"

namespace quern {

// Output 0 has the type of input 0.
void infer_same_as_input(InferContext& context);
// Output 0: the broadcast of all inputs' shapes, the dtype of input 0; integer elements are not tracked.
void infer_broadcast(InferContext& context);
// The same with a dtype of its own.
void infer_broadcast_as(InferContext& context, DType dtype);
// Output 0 has the dtype of input 0 and a shape of that rank, or an unknown one.
void infer_rank(InferContext& context, std::optional<size_t> rank);

// Fails on what no rotary embedding can mean: an attribute `interleaved` (by that name) other than 0 and 1,
// or a rotary_embedding_dim other than 0 (all features) and twice the columns of the caches.
void check_rotary(InferContext& context, const std::string& interleaved, size_t cos_input);

// A negative axis counts from the end. Fails, naming node and axis, outside [-rank, rank).
int64_t normalize_axis(const InferContext& context, int64_t axis, int64_t rank);
// The same for several, sorted.
std::vector<int64_t> normalize_axes(const InferContext& context, std::vector<int64_t> axes, int64_t rank);

// A shape of `rank` dimensions nobody knows.
SymShape unknown_dims(size_t rank);

// An integer list that is an attribute in older versions of an operator and an input in newer ones.
struct IntsParameter {
  bool given = false;                          // as the one or the other
  std::optional<std::vector<int64_t>> values;  // where it is given and constant
};
IntsParameter ints_parameter(const InferContext& context, const std::string& attribute, size_t input);

// min(a, b) where it is certain which of the two that is.
std::optional<Dim> known_min(const Dim& a, const Dim& b);
std::optional<Dim> known_max(const Dim& a, const Dim& b);
// a == b, a < b where that does not depend on the symbols.
std::optional<bool> known_equal(const Dim& a, const Dim& b);
std::optional<bool> known_less(const Dim& a, const Dim& b);

// Tracks the elements of output 0 as op(a, b) of those of inputs 0 and 1, one element against many repeated.
// Nothing is tracked where an element of an input or a result is not known.
void track_elements(InferContext& context,
                    const std::function<std::optional<Dim>(const Dim&, const Dim&)>& op);
// The same for input 0 alone.
void track_elements(InferContext& context, const std::function<std::optional<Dim>(const Dim&)>& op);

// The output length of a window of `kernel` elements that slides by `stride`: floor((length + pads - reach) /
// stride)
// + 1, where reach = dilation * (kernel - 1) + 1; rounded up if `ceil`. A fresh symbol where `length` is
// symbolic and the stride is not 1.
Dim window_count(const Dim& length, int64_t reach, int64_t pads, int64_t stride, bool ceil = false);

}  // namespace quern
