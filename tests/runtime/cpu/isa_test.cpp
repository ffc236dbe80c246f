#include "runtime/cpu/isa.h"

#include <gtest/gtest.h>

#include "ir/error.h"

namespace quern::cpu {
namespace {

TEST(Isa, NamesRoundTrip) {
  for (const Isa isa : supported_isas()) EXPECT_EQ(isa_from_string(to_string(isa)), isa);
  EXPECT_THROW(isa_from_string("mmx"), Error);
}

TEST(Isa, PortableRunsEverywhere) {
  EXPECT_TRUE(is_supported(Isa::Portable));
  EXPECT_TRUE(is_supported(active_isa()));
}

TEST(Isa, ForcingNestsAndEnds) {
  const Isa before = active_isa();
  const bool reference_before = reference_forced();
  {
    const ForcedKernels outer(Isa::Portable, true);
    EXPECT_EQ(active_isa(), Isa::Portable);
    EXPECT_TRUE(reference_forced());
    {
      const ForcedKernels inner(supported_isas().back());
      EXPECT_EQ(active_isa(), supported_isas().back());
      EXPECT_FALSE(reference_forced());
    }
    EXPECT_EQ(active_isa(), Isa::Portable);
  }
  EXPECT_EQ(active_isa(), before);
  EXPECT_EQ(reference_forced(), reference_before);
}

}  // namespace
}  // namespace quern::cpu
