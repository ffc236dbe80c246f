// How good Medusa heads are, what verifying their guesses costs, and which tree follows from both.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/decoder/session.h"
#include "runtime/speculate/medusa_tree.h"

namespace quern::calibrate {

struct MedusaAccuracies {
  // [head][rank]: how often the head's choice of that rank is the token that comes.
  std::vector<std::vector<double>> model;  // that the model says, greedily: what counts when decoding
  std::vector<std::vector<double>> text;   // that stands in the text
  int64_t model_positions = 0;
  int64_t text_positions = 0;
};

struct MedusaMeasure {
  int64_t prompt = 64;    // tokens of a prompt
  int64_t generate = 64;  // tokens that the model writes behind it
  int64_t ranks = 10;
  std::function<void(int64_t done, int64_t of)> progress = {};
};

// `session`: of a program compiled with runtime::medusa_program(). Each piece of text is a prompt, of which
// the model writes on, and a text to be guessed itself. Throws Error{InvalidArgument} for another program or
// pieces that are shorter than a prompt.
MedusaAccuracies measure_medusa_heads(runtime::Session& session, std::span<const std::vector<int64_t>> pieces,
                                      const MedusaMeasure& options);

struct MedusaCosts {
  std::vector<std::pair<int64_t, double>> runs;  // rows, ascending from 1, and the seconds that a run takes
  double heads = 0;                              // seconds of all heads for one token
  // By rows, between those measured along a line, beyond them along the last one.
  double run(int64_t rows) const;
};

// Medians, behind `context` tokens, with trees of 1 to `most` rows.
MedusaCosts measure_medusa_costs(runtime::Session& session, int64_t context, int64_t most);

struct MedusaChoice {
  runtime::MedusaTree tree;
  double expected_tokens = 1;   // of a run
  double expected_speedup = 1;  // expected_tokens * T(1) / (T(1 + nodes) + heads)
};
// The best tree of so many nodes; 0: of the number, at most `most`, with the greatest expected speed.
MedusaChoice choose_medusa_tree(const MedusaAccuracies& accuracies, const MedusaCosts& costs, int64_t nodes,
                                int64_t most);

}  // namespace quern::calibrate
