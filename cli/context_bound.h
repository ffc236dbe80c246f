// How long a text may get where nobody says.
#pragma once

#include <cstdint>

#include "runtime/decoder/program.h"
#include "runtime/decoder/session.h"

namespace quern::cli {

// Bytes that this process may still take: what the machine has available, what its control group and its
// resource limits leave. Where nothing can be read, 4 GiB.
int64_t available_memory();

// The most tokens of one sequence whose keys and values take at most `bytes`, all layers together; at least
// 1, and 0, no bound, for a model without a cache. Layers with a sliding window count as if they had none.
int64_t tokens_within(int64_t bytes, const runtime::DecoderTraits& traits, DType cache_dtype);

// The options with a context that `sequences` side by side can have in half of the memory at hand, where
// neither the model nor the user states one: then sequences end there, rather than the process for lack of
// memory.
runtime::SessionOptions with_context_bound(runtime::SessionOptions options,
                                           const runtime::DecoderTraits& traits, int64_t sequences = 1);

}  // namespace quern::cli
