// The embedding interface of libquern_runtime: include this one header to decode tokens.
//
//   auto program = quern::runtime::Program::compile(*graph);
//   quern::runtime::Session session(program, {.threads = 4});
//   quern::runtime::Sequence sequence = session.new_sequence();
//   std::span<const float> logits = session.run(sequence, prompt);   // of the prompt's last token
//   int64_t next = quern::runtime::argmax(logits);
//
// or whole texts by generate(), by several decoders at once (Instances), or in parts (generate_forks()).
// Every function may throw quern::Error (ir/error.h) and nothing else.
#pragma once

#include "ir/error.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/sequence.h"
#include "runtime/decoder/session.h"
#include "runtime/generate/generate.h"
#include "runtime/generate/instances.h"
#include "runtime/generate/outline.h"
#include "runtime/generate/sampler.h"
