// Kept prefixes as the commands offer them.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/loaded_model.h"
#include "runtime/prefix/prefix_cache.h"

namespace quern::cli {

// --prefix-cache, --cache-memory and --cache-ttl.
void declare_prefix_options(OptionSet& options);

// The session's options with --cache-memory.
runtime::SessionOptions with_cache_memory(runtime::SessionOptions options, const Arguments& arguments);

// A cache with what --prefix-cache names, or an empty one. Of a folder, files of other models are passed over
// with a warning; a file that is named itself must fit.
std::unique_ptr<runtime::PrefixCache> open_prefix_cache(const Arguments& arguments, const LoadedModel& model,
                                                        runtime::Session& session, Console& console);

// Tells one model from another, down to the last bit of its weights: of an artifact the digest of its
// sections' checksums, else that of its files.
std::string identity_of(const ModelFile& file);

nlohmann::ordered_json prefix_json(const runtime::PrefixCacheStatistics& statistics);

}  // namespace quern::cli
