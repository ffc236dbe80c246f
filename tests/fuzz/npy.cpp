// .npy files.
#include "formats/npy/npy.h"
#include "tests/fuzz/fuzz.h"

void quern::fuzz::run(std::span<const std::byte> input) {
  const auto [owner, bytes] = own(input);
  const Tensor tensor = npy::parse(bytes, owner, "fuzz.npy");
  if (tensor.dtype() != DType::String && tensor.size() > 0) tensor.at(tensor.size() - 1);
}
