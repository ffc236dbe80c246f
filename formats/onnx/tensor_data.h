// Tensors of ONNX files.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "formats/onnx/external_data.h"
#include "formats/onnx/proto.h"
#include "ir/tensor.h"

namespace quern::onnx_format {

// Turns TensorProtos into Tensors: views of the model file or of external files where they can be, copies
// elsewhere.
class TensorReader {
 public:
  // `payloads` are the spans that kPayloadField indexes, parts of what `owner` keeps alive.
  TensorReader(std::shared_ptr<const void> owner, std::vector<std::span<const std::byte>> payloads,
               ExternalFiles& external)
      : owner_(std::move(owner)), payloads_(std::move(payloads)), external_(external) {}

  // Throws Error{InvalidModel} where shape and data do not agree, Error{Unsupported} for element types that
  // quern has not, and what ExternalFiles throws.
  Tensor read(const onnx::TensorProto& proto) const;
  // The dense equal of a sparse tensor. Refuses one that is absurdly larger than its file.
  Tensor read(const onnx::SparseTensorProto& proto) const;

 private:
  std::shared_ptr<const void> owner_;
  std::vector<std::span<const std::byte>> payloads_;
  ExternalFiles& external_;
};

// The message for `tensor`, data in raw_data (string_data for strings), without a name.
onnx::TensorProto tensor_to_onnx(const Tensor& tensor);
// The same without the data.
onnx::TensorProto tensor_header_to_onnx(const Tensor& tensor);

}  // namespace quern::onnx_format
