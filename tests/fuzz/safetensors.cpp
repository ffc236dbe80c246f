// Safetensors files.
#include "formats/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"

void quern::fuzz::run(std::span<const std::byte> input) {
  const auto [owner, bytes] = own(input);
  const safetensors::File file = safetensors::parse(bytes, owner, "fuzz.safetensors");
  double sum = 0;
  for (const auto& [name, tensor] : file.tensors) {
    if (tensor.size() > 0) sum += tensor.at(tensor.size() - 1);
  }
  static_cast<void>(sum);
}
