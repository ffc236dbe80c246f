// Which tokens begin and end texts, guessed from a tokenizer's own tokens.
#pragma once

#include "formats/tokenizer/pipeline.h"

namespace quern::tokenizer {

// Sets the pipeline's bos_hint and eos_hints.
void guess_hints(Pipeline& pipeline);

}  // namespace quern::tokenizer
