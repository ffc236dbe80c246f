// Which tokens begin and end texts, guessed from a tokenizer's own tokens.
#pragma once

#include "formats/tokenizer/pipeline.h"

namespace quern::tokenizer {

// Sets the pipeline's bos_hint and eos_hints.
void guess_hints(Pipeline& pipeline);

// For files that name both tokens (an id that is no token: none): sets the hints, and makes encode() add what
// `options` ask for.
void frame_texts(Pipeline& pipeline, int64_t bos_id, int64_t eos_id, const SpecialTokenOptions& options);

}  // namespace quern::tokenizer
