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

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// libgcc reads the same registers by itself. What the kernels are compiled with: runtime/cpu/CMakeLists.txt.
TEST(Isa, IsWhatTheCompilersLibraryDetects) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("f16c") != 0 && __builtin_cpu_supports("bmi") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0 &&
                      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0;
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni") != 0;
  EXPECT_EQ(is_supported(Isa::Avx2), avx2);
  EXPECT_EQ(is_supported(Isa::AvxVnni), avx2 && __builtin_cpu_supports("avxvnni") != 0);
  EXPECT_EQ(is_supported(Isa::Avx512), avx512);
  EXPECT_EQ(is_supported(Isa::Avx512Vnni), vnni);
  EXPECT_EQ(is_supported(Isa::Avx512Bf16), vnni && __builtin_cpu_supports("avx512bf16") != 0);
}
#endif

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
