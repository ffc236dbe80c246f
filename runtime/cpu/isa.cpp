#include "runtime/cpu/isa.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "ir/error.h"

namespace quern::cpu {
namespace {

#if defined(__x86_64__)
bool bit(unsigned word, int i) {
  return ((word >> i) & 1U) != 0;
}
#endif

struct NamedIsa {
  Isa isa;
  std::string_view name;
};

constexpr NamedIsa kIsas[] = {
#define QUERN_ROW(Name, name) {Isa::Name, #name},
    QUERN_FOR_EACH_ISA(QUERN_ROW)
#undef QUERN_ROW
};

// Bit i: the machine runs Isa(i). Read from CPUID and XCR0 rather than from the compiler's built-in, whose
// list of names differs between compilers.
uint32_t detect() {
  uint32_t mask = 1;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return mask;
  const bool fma = bit(c, 12), f16c = bit(c, 29), osxsave = bit(c, 27), avx = bit(c, 28);
  if (!osxsave || !avx) return mask;
  unsigned xcr0 = 0, xcr0_high = 0;
  __asm__("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
  const bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xE6) == 0xE6;
  if (!ymm || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return mask;
  const bool avx2 = fma && f16c && bit(b, 5) && bit(b, 3) && bit(b, 8);  // with BMI1 and BMI2
  const bool avx512 = avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  const bool vnni = avx512 && bit(c, 11);
  const bool has_leaf_1 = a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0;
  mask |= static_cast<uint32_t>(avx2) << static_cast<int>(Isa::Avx2);
  mask |= static_cast<uint32_t>(avx2 && has_leaf_1 && bit(a, 4)) << static_cast<int>(Isa::AvxVnni);
  mask |= static_cast<uint32_t>(avx512) << static_cast<int>(Isa::Avx512);
  mask |= static_cast<uint32_t>(vnni) << static_cast<int>(Isa::Avx512Vnni);
  mask |= static_cast<uint32_t>(vnni && has_leaf_1 && bit(a, 5)) << static_cast<int>(Isa::Avx512Bf16);
#endif
  return mask;
}

Isa from_environment() {
  const char* wanted = std::getenv("QUERN_ISA");
  if (wanted != nullptr && *wanted != '\0') {
    const Isa isa = isa_from_string(wanted);
    if (!is_supported(isa)) {
      throw_error(ErrorCode::Unsupported, "QUERN_ISA asks for ", wanted, ", which this machine lacks");
    }
    return isa;
  }
  return supported_isas().back();
}

bool reference_from_environment() {
  const char* wanted = std::getenv("QUERN_FORCE_KERNEL");
  if (wanted == nullptr || *wanted == '\0') return false;
  if (std::string_view(wanted) != "reference") {
    throw_error(ErrorCode::InvalidArgument, "QUERN_FORCE_KERNEL is '", wanted, "'; it may be 'reference'");
  }
  return true;
}

// -1: not forced.
std::atomic<int> forced_isa{-1};
std::atomic<int> forced_reference{-1};

}  // namespace

std::string_view to_string(Isa isa) {
  for (const NamedIsa& row : kIsas) {
    if (row.isa == isa) return row.name;
  }
  return "unknown";
}

Isa isa_from_string(std::string_view name) {
  std::string names;
  for (const NamedIsa& row : kIsas) {
    if (row.name == name) return row.isa;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  throw_error(ErrorCode::InvalidArgument, "unknown instruction set '", name, "'; known here: ", names);
}

bool is_supported(Isa isa) {
  static const uint32_t mask = detect();
  return ((mask >> static_cast<int>(isa)) & 1) != 0;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> out;
  for (const NamedIsa& row : kIsas) {
    if (is_supported(row.isa)) out.push_back(row.isa);
  }
  return out;
}

Isa active_isa() {
  const int forced = forced_isa.load(std::memory_order_relaxed);
  if (forced >= 0) return static_cast<Isa>(forced);
  static const Isa isa = from_environment();
  return isa;
}

bool reference_forced() {
  const int forced = forced_reference.load(std::memory_order_relaxed);
  if (forced >= 0) return forced != 0;
  static const bool reference = reference_from_environment();
  return reference;
}

ForcedKernels::ForcedKernels(Isa isa, bool reference)
    : previous_isa_(forced_isa.load()), previous_reference_(forced_reference.load()) {
  if (!is_supported(isa)) {
    throw_error(ErrorCode::Unsupported, "this machine does not run ", to_string(isa), " kernels");
  }
  forced_isa = static_cast<int>(isa);
  forced_reference = reference ? 1 : 0;
}

ForcedKernels::~ForcedKernels() {
  forced_isa = previous_isa_;
  forced_reference = previous_reference_;
}

}  // namespace quern::cpu
