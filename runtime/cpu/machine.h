// What this machine can do at best: memory bandwidth and dot-product rates, against which kernels are judged.
#pragma once

#include <cstdint>

#include "runtime/cpu/isa.h"

namespace quern::cpu {

class ThreadTeam;

struct MachineRates {
  Isa isa = Isa::Portable;
  int threads = 1;
  // Reading memory beyond the caches, in GB/s (10^9 bytes): one thread, and all of the team.
  double read_gbps_one = 0;
  double read_gbps_all = 0;
  // Multiply-adds count as two operations, in 10^9 a second, from registers, on one thread and on all.
  double fp32_one = 0;
  double fp32_all = 0;
  double bf16_one = 0;  // 0 where the instruction set has no bf16 dot product
  double bf16_all = 0;
  double int8_one =
      0;  // exact 8-bit by 8-bit into 32-bit sums, by the fastest sequence of the instruction set
  double int8_all = 0;
  double int4_one = 0;  // 4-bit by 8-bit into 32-bit sums
  double int4_all = 0;
  // An empty parallel region of all threads while the team is hot, in microseconds.
  double fork_join_us = 0;
};

struct MachineOptions {
  int64_t buffer_bytes = int64_t{512} << 20;  // to read; several times the last-level cache
  int repetitions = 4;                        // the best one counts
};

// Takes about a second with the default options. Throws Error{OutOfMemory} where the buffer does not fit.
MachineRates measure_machine(ThreadTeam& team, const MachineOptions& options = {}, Isa isa = active_isa());

// Reading `bytes` bytes at `data` by all threads of the team, once, in GB/s: for measurements beside a
// benchmark that reads the same memory. `bytes` is rounded down to whole kilobytes per thread.
double measure_read_gbps(ThreadTeam& team, const void* data, int64_t bytes, Isa isa = active_isa());

struct MachineKernels {
  // Reads `bytes` (a multiple of 1024) as four streams; returns something that depends on all of them.
  int32_t (*read)(const void* data, int64_t bytes);
  // Each does `rounds` rounds of 12 independent accumulations, and returns something that depends on them.
  float (*fp32)(int64_t rounds);
  float (*bf16)(int64_t rounds);
  int32_t (*int8)(int64_t rounds);
  int32_t (*int4)(int64_t rounds);
  // Operations of a round; 0: the instruction set lacks it.
  int64_t fp32_operations, bf16_operations, int8_operations, int4_operations;
};

}  // namespace quern::cpu
