#include "cli/context_bound.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace quern::cli {
namespace {

// "MemAvailable:   12345 kB" of such a file.
std::optional<int64_t> kilobytes_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(key)) return std::strtoll(line.c_str() + key.size(), nullptr, 10) * 1024;
  }
  return std::nullopt;
}

std::optional<int64_t> number_in(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number)) return std::nullopt;  // also "max"
  return number;
}

std::optional<int64_t> left_of_limit(__rlimit_resource resource, const std::string& used) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  constexpr auto kMost = static_cast<rlim_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMost)) -
         kilobytes_of("/proc/self/status", used).value_or(0);
}

}  // namespace

int64_t available_memory() {
  std::optional<int64_t> least;
  const auto at_most = [&](std::optional<int64_t> bytes) {
    if (bytes) least = std::min(least.value_or(*bytes), *bytes);
  };
  at_most(kilobytes_of("/proc/meminfo", "MemAvailable:"));
  if (const auto most = number_in("/sys/fs/cgroup/memory.max"))
    at_most(*most - number_in("/sys/fs/cgroup/memory.current").value_or(0));
  at_most(left_of_limit(RLIMIT_DATA, "VmData:"));
  at_most(left_of_limit(RLIMIT_AS, "VmSize:"));
  return std::max<int64_t>(0, least.value_or(int64_t{4} << 30));
}

int64_t tokens_within(int64_t bytes, const runtime::DecoderTraits& traits, DType cache_dtype) {
  const bool has_scales = cache_dtype == DType::I8 || cache_dtype == DType::I4;
  int64_t per_token = 0;
  for (const runtime::CacheLayerShape& layer : traits.layers) {
    per_token += byte_size(cache_dtype, layer.kv_heads * (layer.key_size + layer.value_size));
    if (has_scales) per_token += byte_size(DType::F32, layer.kv_heads * 2);  // of a key and of a value
  }
  return per_token == 0 ? 0 : std::max<int64_t>(1, bytes / per_token);
}

runtime::SessionOptions with_context_bound(runtime::SessionOptions options,
                                           const runtime::DecoderTraits& traits, int64_t sequences) {
  if (traits.context > 0 || options.context > 0) return options;
  options.context = tokens_within(available_memory() / 2 / sequences, traits,
                                  options.cache_dtype.value_or(traits.cache_dtype));
  return options;
}

}  // namespace quern::cli
