// ONNX import, with inference and verification.
#include "formats/onnx/import.h"
#include "tests/fuzz/fuzz.h"

void quern::fuzz::run(std::span<const std::byte> input) {
  const auto [owner, bytes] = own(input);
  onnx_format::import_model(bytes, owner, "fuzz.onnx");
}
