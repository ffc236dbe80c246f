// Declares the tables that the kernel files export, and the function that chooses among them:
//
//   QUERN_DECLARE_KERNELS(UnaryKernels, unary_kernels)
//
// in namespace quern::cpu of a .cpp declares portable::unary_kernels, avx2::unary_kernels, ... and defines a
// local `const UnaryKernels& unary_kernels(Isa)`. In the kernel file:
//
//   namespace quern::cpu::QUERN_ISA { extern const UnaryKernels unary_kernels; const UnaryKernels
//   unary_kernels = {...}; }
#pragma once

#include "runtime/cpu/isa.h"

#if defined(__x86_64__) || defined(_M_X64)
#define QUERN_DECLARE_KERNELS(Table, table)          \
  namespace portable {                               \
  extern const Table table;                          \
  }                                                  \
  namespace avx2 {                                   \
  extern const Table table;                          \
  }                                                  \
  namespace avx_vnni {                               \
  extern const Table table;                          \
  }                                                  \
  namespace avx512 {                                 \
  extern const Table table;                          \
  }                                                  \
  namespace avx512_vnni {                            \
  extern const Table table;                          \
  }                                                  \
  namespace avx512_bf16 {                            \
  extern const Table table;                          \
  }                                                  \
  static const Table& table(::quern::cpu::Isa isa) { \
    using ::quern::cpu::Isa;                         \
    switch (isa) {                                   \
      case Isa::Portable:                            \
        return portable::table;                      \
      case Isa::Avx2:                                \
        return avx2::table;                          \
      case Isa::AvxVnni:                             \
        return avx_vnni::table;                      \
      case Isa::Avx512:                              \
        return avx512::table;                        \
      case Isa::Avx512Vnni:                          \
        return avx512_vnni::table;                   \
      case Isa::Avx512Bf16:                          \
        return avx512_bf16::table;                   \
    }                                                \
    return portable::table;                          \
  }
#else
#define QUERN_DECLARE_KERNELS(Table, table)      \
  namespace portable {                           \
  extern const Table table;                      \
  }                                              \
  static const Table& table(::quern::cpu::Isa) { \
    return portable::table;                      \
  }
#endif
