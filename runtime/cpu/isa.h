// Which instruction sets the kernels were compiled for, which of them this machine has, and which one is
// used.
//
// A file named *_kernels.cpp is compiled once per instruction set, each time into its own namespace
// quern::cpu::QUERN_ISA (portable, avx2, ...), and exports one table of function pointers from it. Rules for
// such a file: raw pointers and simd.h only; no standard library beyond <cstdint>, <cstddef>, <cstring>, for
// a template instantiated under AVX-512 flags could be the copy the linker keeps for all; no static objects
// with constructors. dispatch.h declares the tables and chooses.
#pragma once

#include <string_view>
#include <vector>

namespace quern::cpu {

// In ascending preference; the numbers are QUERN_ISA_LEVEL in the kernel files.
enum class Isa : int {
  Portable = 0,
  Avx2 = 1,        // AVX2, FMA, F16C
  AvxVnni = 2,     // Avx2 and AVX-VNNI (256-bit dot products)
  Avx512 = 3,      // F, BW, VL, DQ, beside Avx2
  Avx512Vnni = 4,  // Avx512 and VNNI
  Avx512Bf16 = 5,  // Avx512Vnni and BF16
};

#if defined(__x86_64__) || defined(_M_X64)
#define QUERN_FOR_EACH_ISA(X) \
  X(Portable, portable)       \
  X(Avx2, avx2)               \
  X(AvxVnni, avx_vnni)        \
  X(Avx512, avx512)           \
  X(Avx512Vnni, avx512_vnni)  \
  X(Avx512Bf16, avx512_bf16)
#else
#define QUERN_FOR_EACH_ISA(X) X(Portable, portable)
#endif

// "portable", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16".
std::string_view to_string(Isa isa);
// The inverse. Throws Error{InvalidArgument} that lists the names.
Isa isa_from_string(std::string_view name);

// Whether processor and operating system run it, and the kernels were compiled for it.
bool is_supported(Isa isa);
std::vector<Isa> supported_isas();

// The best supported one, or what the environment variable QUERN_ISA names. Read once. Throws
// Error{InvalidArgument} where QUERN_ISA names an unknown one, Error{Unsupported} where this machine lacks
// it.
Isa active_isa();

// Whether QUERN_FORCE_KERNEL=reference is set: kernels then compute by their slow and obvious versions. Read
// once. Throws Error{InvalidArgument} for a value other than "reference" or "".
bool reference_forced();

// For tests, that they may run every instruction set of the machine in one process: what active_isa() and
// reference_forced() return while the object lives. Not thread-safe; objects nest.
class ForcedKernels {
 public:
  explicit ForcedKernels(Isa isa, bool reference = false);
  ~ForcedKernels();
  ForcedKernels(const ForcedKernels&) = delete;
  ForcedKernels& operator=(const ForcedKernels&) = delete;

 private:
  int previous_isa_;
  int previous_reference_;
};

}  // namespace quern::cpu
