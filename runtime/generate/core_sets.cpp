#include "runtime/generate/core_sets.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "ir/error.h"
#include "runtime/cpu/thread_team.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace quern::runtime {
namespace {

#if defined(__linux__)
// The first hardware thread of the processor's core, which names the core.
int core_of(int processor) {
  std::ifstream file(concat("/sys/devices/system/cpu/cpu", processor, "/topology/thread_siblings_list"));
  int first = processor;
  return file >> first ? first : processor;
}
#endif

// Of each core that this process may use its hardware threads.
std::vector<std::vector<int>> usable_cores() {
  std::vector<std::vector<int>> cores;
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    std::map<int, std::vector<int>> by_core;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &mask)) by_core[core_of(cpu)].push_back(cpu);
    }
    for (auto& [core, processors] : by_core) cores.push_back(std::move(processors));
  }
#endif
  const auto most = static_cast<size_t>(cpu::default_thread_count());
  if (cores.empty() || cores.size() > most) cores.resize(most);
  return cores;
}

}  // namespace

std::vector<CoreSet> split_cores(int count) {
  const std::vector<std::vector<int>> cores = usable_cores();
  if (count < 1 || static_cast<size_t>(count) > cores.size()) {
    throw_error(ErrorCode::InvalidArgument, count, " instances do not fit the ", cores.size(),
                " cores that this process may use: each needs one of its own");
  }
  std::vector<CoreSet> sets(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const cpu::Range part = cpu::part_of(static_cast<int64_t>(cores.size()), i, count);
    CoreSet& set = sets[static_cast<size_t>(i)];
    set.cores = static_cast<int>(part.end - part.begin);
    for (int64_t core = part.begin; core < part.end; ++core) {
      const std::vector<int>& processors = cores[static_cast<size_t>(core)];
      set.processors.insert(set.processors.end(), processors.begin(), processors.end());
    }
  }
  return sets;
}

void pin_this_thread(const CoreSet& cores) {
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int processor : cores.processors) CPU_SET(processor, &mask);
  if (cores.processors.empty() || sched_setaffinity(0, sizeof(mask), &mask) == 0) return;
  throw_error(ErrorCode::Unsupported, "the system does not let a thread be pinned to ", cores.cores,
              " cores: ", std::strerror(errno));
#else
  static_cast<void>(cores);
#endif
}

}  // namespace quern::runtime
