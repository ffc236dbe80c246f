#include "cli/prefix_cache.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "formats/artifact/artifact.h"
#include "formats/file/checksum.h"
#include "runtime/prefix/sequence_file.h"

namespace quern::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".qkv") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

void declare_prefix_options(OptionSet& options) {
  options
      .text("prefix-cache", "PATH",
            "keys and values of texts that prompts may begin with: a file that `quern cache build` wrote, or "
            "a folder of them")
      .number("cache-memory", "MB", {1, 1e9}, "keys and values may take so much; kept prefixes go first")
      .number("cache-ttl", "SECONDS", {0.001, 1e9}, "forget prefixes that were not used for so long");
}

runtime::SessionOptions with_cache_memory(runtime::SessionOptions options, const Arguments& arguments) {
  if (const auto megabytes = arguments.number("cache-memory")) {
    options.cache_memory = static_cast<int64_t>(*megabytes * 1e6);
  }
  return options;
}

std::string identity_of(const ModelFile& file) {
  if (!file.is_artifact()) return digest_of(file);
  Sha256 digest;
  const artifact::Artifact artifact = artifact::Artifact::open(file.path);
  for (const auto& section : artifact.sections()) {
    digest.update(concat(section.name, "\n", section.offset, " ", section.size, " ", section.crc, "\n"));
  }
  return to_hex(digest.finish());
}

std::unique_ptr<runtime::PrefixCache> open_prefix_cache(const Arguments& arguments, const LoadedModel& model,
                                                        runtime::Session& session, Console& console) {
  auto cache = std::make_unique<runtime::PrefixCache>(
      session, runtime::PrefixCacheOptions{.lifetime = arguments.number("cache-ttl").value_or(0)});
  const std::optional<std::string> path = arguments.text("prefix-cache");
  if (!path) return cache;
  const std::string identity = identity_of(model.file);
  const bool folder = fs::is_directory(*path);
  for (const fs::path& file : files_of(*path)) {
    try {
      const runtime::Sequence sequence = runtime::load_sequence(session, file, identity);
      cache->keep(sequence, sequence.size());
    } catch (const Error& error) {
      if (!folder || error.code() != ErrorCode::BadData) throw;
      console.warn(error.what());
    }
  }
  return cache;
}

nlohmann::ordered_json prefix_json(const runtime::PrefixCacheStatistics& statistics) {
  return {{"lookups", statistics.lookups},     {"hits", statistics.hits},
          {"tokens", statistics.tokens},       {"hit_tokens", statistics.hit_tokens},
          {"hit_rate", statistics.hit_rate()}, {"kept", statistics.kept},
          {"evicted", statistics.evicted},     {"expired", statistics.expired}};
}

}  // namespace quern::cli
