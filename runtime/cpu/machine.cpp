#include "runtime/cpu/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>

#include "ir/error.h"
#include "runtime/cpu/dispatch.h"
#include "runtime/cpu/thread_team.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace quern::cpu {

QUERN_DECLARE_KERNELS(MachineKernels, machine_kernels)

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What kernels return goes here, so that no compiler drops the work.
volatile double sink = 0;

// Memory with bytes in it, in large pages where the system gives them.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) : bytes_(bytes) {
    constexpr size_t kLargePage = size_t{2} << 20;
    data_ = ::operator new (static_cast<size_t>(bytes), std::align_val_t{kLargePage}, std::nothrow);
    if (data_ == nullptr) {
      throw_error(ErrorCode::OutOfMemory, "no memory for a buffer of ", bytes,
                  " bytes to measure the bandwidth with");
    }
#if defined(__linux__)
    madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
  }
  ~Buffer() {
    ::operator delete (data_, std::align_val_t{size_t{2} << 20});
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void fill(ThreadTeam& team) {
    team.run([&](int thread) {
      const Range part = part_of(bytes_, thread, team.size());
      std::memset(static_cast<char*>(data_) + part.begin, 1, static_cast<size_t>(part.end - part.begin));
    });
  }
  const void* data() const {
    return data_;
  }

 private:
  int64_t bytes_;
  void* data_;
};

double read_gbps(const MachineKernels& kernels, const void* data, int64_t bytes) {
  const int64_t whole = bytes / 1024 * 1024;
  const Clock::time_point start = Clock::now();
  sink = sink + kernels.read(data, whole);
  return static_cast<double>(whole) / seconds_since(start) / 1e9;
}

// Operations a second of one kernel, on one thread or on all: the best of a few runs of about 20 ms.
double rate(ThreadTeam& team, bool all, int repetitions, int64_t operations, const auto& kernel) {
  if (operations == 0) return 0;
  constexpr double kSeconds = 0.02;
  int64_t rounds = 8 * 1024;
  double best = 0;
  for (int i = 0; i <= repetitions; ++i) {
    const Clock::time_point start = Clock::now();
    if (all) {
      team.run([&](int) { kernel(rounds); });
    } else {
      kernel(rounds);
    }
    const double seconds = std::max(seconds_since(start), 1e-7);
    const double done = static_cast<double>(rounds * operations) * (all ? team.size() : 1);
    best = std::max(best, done / seconds / 1e9);
    // Whole groups of eight: a round of the 4-bit kernel.
    if (i == 0)
      rounds = std::max<int64_t>(
          8, static_cast<int64_t>(static_cast<double>(rounds) * kSeconds / seconds) / 8 * 8);
  }
  return best;
}

double empty_region_us(ThreadTeam& team) {
  constexpr int kRegions = 2000;
  const ThreadTeam::Hot hot(team);
  double best = 1e9;
  for (int batch = 0; batch < 5; ++batch) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kRegions; ++i) team.run([](int) {});
    best = std::min(best, seconds_since(start) / kRegions * 1e6);
  }
  return best;
}

}  // namespace

double measure_read_gbps(ThreadTeam& team, const void* data, int64_t bytes, Isa isa) {
  const MachineKernels& kernels = machine_kernels(isa);
  const int64_t each = bytes / team.size() / 1024 * 1024;
  const ThreadTeam::Hot hot(team);
  const Clock::time_point start = Clock::now();
  team.run([&](int thread) {
    const int32_t value = kernels.read(static_cast<const char*>(data) + thread * each, each);
    if (thread == 0) sink = sink + value;
  });
  return static_cast<double>(each * team.size()) / seconds_since(start) / 1e9;
}

MachineRates measure_machine(ThreadTeam& team, const MachineOptions& options, Isa isa) {
  const MachineKernels& kernels = machine_kernels(isa);
  MachineRates out;
  out.isa = isa;
  out.threads = team.size();
  const int repetitions = std::max(1, options.repetitions);
  {
    Buffer buffer(options.buffer_bytes);
    buffer.fill(team);
    for (int i = 0; i < repetitions; ++i) {
      out.read_gbps_one =
          std::max(out.read_gbps_one, read_gbps(kernels, buffer.data(), options.buffer_bytes));
      out.read_gbps_all =
          std::max(out.read_gbps_all, measure_read_gbps(team, buffer.data(), options.buffer_bytes, isa));
    }
  }
  const auto measure = [&](double& one, double& all, int64_t operations, auto kernel) {
    const auto run = [&](int64_t rounds) { sink = sink + static_cast<double>(kernel(rounds)); };
    one = rate(team, false, repetitions, operations, run);
    all = team.size() == 1 ? one : rate(team, true, repetitions, operations, run);
  };
  measure(out.fp32_one, out.fp32_all, kernels.fp32_operations, kernels.fp32);
  measure(out.bf16_one, out.bf16_all, kernels.bf16_operations, kernels.bf16);
  measure(out.int8_one, out.int8_all, kernels.int8_operations, kernels.int8);
  measure(out.int4_one, out.int4_all, kernels.int4_operations, kernels.int4);
  out.fork_join_us = empty_region_us(team);
  return out;
}

}  // namespace quern::cpu
