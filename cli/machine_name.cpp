#include "cli/machine_name.h"

#include <fstream>

#include "runtime/cpu/isa.h"

namespace quern::cli {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace

std::string machine_name(int threads) {
  std::string text = processor() + ", " + std::string(cpu::to_string(cpu::active_isa()));
  if (threads > 0) text += ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  return text;
}

}  // namespace quern::cli
