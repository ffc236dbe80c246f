// A first look at an ONNX file, before protobuf sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace quern::onnx_format {

// The field of a TensorProto that stands for a payload in the slim bytes: a varint, its index. Unknown to
// every version of ONNX, so that protobuf keeps it among the unknown fields.
inline constexpr int kPayloadField = 9'000'001;

// A ModelProto without its large raw_data, and where in the file those are.
struct SlimModel {
  std::string bytes;
  std::vector<std::span<const std::byte>> payloads;
};

// Copies `file`, a serialized ModelProto, leaving out every raw_data of more than `threshold` bytes, wherever
// a tensor may stand. Only tags and lengths are read of what is left out, so that a large mapped file is not
// brought into memory, and one of more than 2 GiB, which protobuf cannot parse, is no trouble.
// Throws Error{Corrupt}, with the position, on what is no well-formed message, and on too deep nesting.
SlimModel slim_down(std::span<const std::byte> file, size_t threshold = 1024);

}  // namespace quern::onnx_format
