#include "runtime/reference/windows.h"

#include <algorithm>

namespace quern::runtime::reference {

int64_t Windows::source(int64_t position, int64_t tap) const {
  int64_t offset = 0;
  int64_t stride = 1;
  for (size_t axis = input.size(); axis-- > 0;) {
    const int64_t at =
        position % output[axis] * strides[axis] + tap % kernel[axis] * dilations[axis] - pads_begin[axis];
    if (at < 0 || at >= input[axis]) return -1;
    offset += at * stride;
    stride *= input[axis];
    position /= output[axis];
    tap /= kernel[axis];
  }
  return offset;
}

void Windows::collect_sources(int64_t position, std::vector<int64_t>& offsets) const {
  offsets.assign(1, 0);
  std::vector<int64_t> starts(input.size());
  for (size_t axis = input.size(); axis-- > 0; position /= output[axis]) {
    starts[axis] = position % output[axis] * strides[axis] - pads_begin[axis];
  }
  std::vector<int64_t> next;
  for (size_t axis = 0; axis < input.size(); ++axis) {
    const int64_t start = starts[axis];
    const int64_t first = start < 0 ? (-start + dilations[axis] - 1) / dilations[axis] : 0;
    next.clear();
    for (const int64_t outer : offsets) {
      for (int64_t tap = first; tap < kernel[axis]; ++tap) {
        const int64_t at = start + tap * dilations[axis];
        if (at >= input[axis]) break;
        next.push_back(outer * input[axis] + at);
      }
    }
    offsets.swap(next);
  }
}

int64_t Windows::taps_in_padded(int64_t position) const {
  Shape counts(input.size());
  for (size_t axis = input.size(); axis-- > 0; position /= output[axis]) {
    const int64_t start = position % output[axis] * strides[axis];
    const int64_t room = pads_begin[axis] + input[axis] + pads_end[axis] - start;
    counts[axis] = std::clamp<int64_t>((room + dilations[axis] - 1) / dilations[axis], 0, kernel[axis]);
  }
  return element_count(counts);
}

Shape spatial_attribute(const KernelContext& context, const std::string& name, size_t count, int64_t fallback,
                        int64_t least) {
  Shape values = context.node().ints_attribute(name, Shape(count, fallback));
  if (values.empty()) values.assign(count, fallback);
  if (values.size() != count) context.fail(name, " has ", values.size(), " entries, expected ", count);
  for (const int64_t value : values) {
    if (value < least || value > (int64_t{1} << 30)) context.fail(name, " holds ", value);
  }
  return values;
}

Shape spatial_dims(const KernelContext& context, const Tensor& x) {
  if (x.rank() < 3) context.fail("the input has the shape ", to_string(x.shape()), ", expected [N, C, ...]");
  return Shape(x.shape().begin() + 2, x.shape().end());
}

Windows windows_of(const KernelContext& context, const Shape& spatial, const Shape& kernel, bool ceil) {
  const size_t n = spatial.size();
  if (kernel.size() != n) {
    context.fail("a kernel of ", kernel.size(), " dimensions for ", n, " spatial dimensions");
  }
  Windows w;
  w.input = spatial;
  w.kernel = kernel;
  w.strides = spatial_attribute(context, "strides", n, 1, 1);
  w.dilations = spatial_attribute(context, "dilations", n, 1, 1);
  const Shape pads = spatial_attribute(context, "pads", 2 * n, 0, -(int64_t{1} << 30));
  const std::string auto_pad = context.node().string_attribute("auto_pad", "NOTSET");
  ceil = ceil && context.node().int_attribute("ceil_mode", 0) != 0;
  for (size_t i = 0; i < n; ++i) {
    if (kernel[i] < 1 || kernel[i] > (int64_t{1} << 30)) context.fail("the kernel is ", to_string(kernel));
    const int64_t reach = w.dilations[i] * (kernel[i] - 1) + 1;
    int64_t begin = pads[i];
    int64_t end = pads[i + n];
    int64_t count = 0;
    if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      count = (spatial[i] + w.strides[i] - 1) / w.strides[i];
      const int64_t total = std::max<int64_t>(0, (count - 1) * w.strides[i] + reach - spatial[i]);
      begin = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      end = total - begin;
    } else {
      if (auto_pad == "VALID") begin = end = 0;
      const int64_t room = spatial[i] + begin + end - reach;
      count = room < 0 ? 0 : (ceil ? (room + w.strides[i] - 1) / w.strides[i] : room / w.strides[i]) + 1;
      // A window that would start in the padding at the end does not count.
      if (ceil && count > 1 && (count - 1) * w.strides[i] >= spatial[i] + begin) --count;
    }
    w.pads_begin.push_back(begin);
    w.pads_end.push_back(end);
    w.output.push_back(count);
  }
  return w;
}

Windows transposed_windows(const KernelContext& context, const Shape& spatial, const Shape& kernel) {
  const Node& node = context.node();
  const size_t n = spatial.size();
  Windows w;
  w.output = spatial;
  w.kernel = kernel;
  w.strides = spatial_attribute(context, "strides", n, 1, 1);
  w.dilations = spatial_attribute(context, "dilations", n, 1, 1);
  const Shape pads = spatial_attribute(context, "pads", 2 * n, 0, -(int64_t{1} << 30));
  const Shape extra = spatial_attribute(context, "output_padding", n, 0, 0);
  const std::string auto_pad = node.string_attribute("auto_pad", "NOTSET");
  const Shape given = node.ints_attribute("output_shape", {});
  if (!given.empty() && given.size() < n) context.fail("output_shape is too short");
  for (size_t i = 0; i < n; ++i) {
    const int64_t full = (spatial[i] - 1) * w.strides[i] + extra[i] + (kernel[i] - 1) * w.dilations[i] + 1;
    const bool same = auto_pad.starts_with("SAME");
    if (given.empty() && !same) {
      const bool valid = auto_pad == "VALID";
      w.pads_begin.push_back(valid ? 0 : pads[i]);
      w.pads_end.push_back(valid ? 0 : pads[i + n]);
      w.input.push_back(full - w.pads_begin[i] - w.pads_end[i]);
      continue;
    }
    const int64_t wanted = given.empty() ? spatial[i] * w.strides[i] : given[given.size() - n + i];
    if (wanted < 0) context.fail("output_shape ", wanted, " is negative");
    const int64_t total = std::max<int64_t>(0, full - wanted);
    w.pads_begin.push_back(auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2);
    w.pads_end.push_back(total - w.pads_begin[i]);
    w.input.push_back(wanted);
  }
  return w;
}

}  // namespace quern::runtime::reference
