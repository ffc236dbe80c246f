// .npz archives, every member of them.
#include "formats/npy/npz.h"
#include "tests/fuzz/fuzz.h"

void quern::fuzz::run(std::span<const std::byte> input) {
  const auto [owner, bytes] = own(input);
  const npy::Archive archive = npy::Archive::parse(bytes, owner, "fuzz.npz");
  for (const std::string& name : archive.names()) archive.read(name);
}
