// Which of a model's layers guess best for it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "runtime/decoder/session.h"
#include "runtime/speculate/self_drafter.h"

namespace quern::calibrate {

struct DraftCandidate {
  runtime::SelfDraft draft;
  // Share of the positions at which the draft's most likely token is the model's. The draft sees the model's
  // own keys and values of all tokens before.
  double agreement = 0;
  double cost = 0;     // weights that a guess reads, against a token of the whole model
  int64_t length = 0;  // of the draft for which the speed-up is greatest
  double speedup = 0;  // against plain decoding, expected
};

struct DraftSearchOptions {
  int64_t context = 128;    // tokens of a piece of text
  int64_t positions = 512;  // that are guessed, in all
  // What one more row costs in a run of the model, as a share of a run with one.
  double row_cost = 0.1;
  runtime::SessionOptions session = {};
  std::function<void(int64_t done)> progress = {};  // candidates measured
};

struct DraftSearchResult {
  std::vector<DraftCandidate> candidates;  // the best one of each number of layers, fewest first
  size_t best = 0;
  int64_t positions = 0;
  int64_t measured = 0;  // candidates
};

// The speed-up against plain decoding that drafts of the best length give: with agreement a, n guesses find
// (1 - a^(n+1)) / (1 - a) tokens (Leviathan et al. 2023), for n guesses, a run of the model, and n more rows
// of what the draft does not share with it. `shared`: the shared layers' part of a token's weights.
DraftCandidate weigh(runtime::SelfDraft draft, double agreement, double cost, double shared, double row_cost);

// Tries the first k layers for every k, exit heads where the model has them, and leaves out one layer after
// another, each time the one that is missed least. Equal data give equal results. Throws Error{BadData} for
// too little text, and as runtime::find_layers().
DraftSearchResult search_draft(const Graph& graph, std::span<const int64_t> tokens,
                               const DraftSearchOptions& options);

}  // namespace quern::calibrate
