#include "runtime/speculate/speculative_decoding.h"

#include <algorithm>
#include <numeric>

#include "runtime/decoder/plan.h"

namespace quern::runtime {
namespace {

std::vector<double> priors_of(const Drafter& drafter) {
  std::vector<double> priors;
  for (int32_t c = 0; c < drafter.classes(); ++c) priors.push_back(drafter.prior(c));
  return priors;
}

}  // namespace

SpeculativeDecoding::SpeculativeDecoding(Session& session, Sampler& sampler, std::unique_ptr<Drafter> drafter,
                                         const PacingOptions& pacing,
                                         std::optional<TypicalAcceptance> typical)
    : session_(session),
      drafter_(std::move(drafter)),
      verifier_(sampler, typical),
      pacing_(pacing, drafter_->classes(), priors_of(*drafter_)) {}

// Tokens that may be proposed in all. A tree is computed whole; and all tokens of a run share the rotary
// frequencies that its length asks for, so that a run must not cross the length where they change.
int64_t SpeculativeDecoding::room_for(const GenerationStream& stream) const {
  int64_t room = session_.options().max_rows - 1;
  const int64_t context = session_.options().context;
  const int64_t original = session_.program().plan().original_context;
  const auto size = static_cast<int64_t>(stream.tokens.size());
  if (context > 0) room = std::min(room, context - size);
  if (original > 0 && size <= original) room = std::min(room, original - size);
  return std::max<int64_t>(room, 0);
}

void SpeculativeDecoding::propose(std::span<GenerationStream* const> streams) {
  proposals_.resize(streams.size());
  limits_.clear();
  for (size_t i = 0; i < streams.size(); ++i) {
    proposals_[i].clear();
    limits_.push_back(std::min({room_for(*streams[i]), streams[i]->most_new - 1, pacing_.most()}));
  }
  if (pacing_.mode() == Pacing::Mode::Plain) return;
  drafter_->propose(streams, limits_, pacing_, proposals_);
  for (const Proposal& proposal : proposals_) statistics_.proposed += static_cast<int64_t>(proposal.size());
  pacing_.select(proposals_);
  for (size_t i = 0; i < streams.size(); ++i) {
    std::vector<int32_t> first(std::min(proposals_[i].size(), static_cast<size_t>(room_for(*streams[i]))));
    std::iota(first.begin(), first.end(), 0);
    proposals_[i].keep(first);
  }
}

void SpeculativeDecoding::add_step(GenerationStream& stream, size_t i) {
  const Proposal& proposal = proposals_[i];
  std::vector<int64_t>& tokens = tokens_[i];
  tokens.assign(1, stream.tokens.back());
  tokens.insert(tokens.end(), proposal.tokens.begin(), proposal.tokens.end());
  std::vector<int32_t>& parents = parents_[i];
  parents.clear();
  if (!proposal.is_chain()) {
    parents.push_back(-1);
    for (const int32_t parent : proposal.parents) parents.push_back(parent + 1);
  }
  steps_.push_back(
      {.sequence = &stream.sequence, .tokens = tokens, .parents = parents, .logits = LogitsFor::All});
}

// Judges a stream's proposal and takes back what was not accepted.
void SpeculativeDecoding::settle(GenerationStream& stream, size_t i) {
  const Proposal& proposal = proposals_[i];
  const Verdict& verdict = verifier_.judge(
      proposal, [&](int32_t node) { return session_.logits(first_step_ + i, node + 1); }, stream.tokens,
      stream.random);
  if (!parents_[i].empty()) {
    path_.assign(1, 0);
    for (const int32_t node : verdict.path) path_.push_back(node + 1);
    stream.sequence.keep(path_);
  } else {
    stream.sequence.rewind(static_cast<int64_t>(proposal.size() - verdict.path.size()));
  }
  drafter_->computed(stream, first_step_ + i, verdict.path.empty() ? 0 : verdict.path.back() + 1);
  stream.found = verdict.tokens;
  for (const Verdict::Evaluated& e : verdict.evaluated) {
    pacing_.record_token(proposal.classes[static_cast<size_t>(e.node)], e.accepted);
  }
  statistics_.rounds += 1;
  statistics_.speculative_rounds += proposal.empty() ? 0 : 1;
  statistics_.tokens += static_cast<int64_t>(verdict.tokens.size());
  statistics_.verified += static_cast<int64_t>(proposal.size());
  statistics_.evaluated += static_cast<int64_t>(verdict.evaluated.size());
  statistics_.accepted += static_cast<int64_t>(verdict.path.size());
}

void SpeculativeDecoding::advance(std::span<GenerationStream* const> streams,
                                  std::span<const SequenceStep> company) {
  const double start = pacing_.now();
  const int64_t speculative_before = statistics_.speculative_rounds;
  int64_t tokens_left = 0;
  for (const GenerationStream* stream : streams) tokens_left = std::max(tokens_left, stream->most_new);
  pacing_.begin_round(static_cast<int64_t>(streams.size()), tokens_left);
  propose(streams);
  const double proposed = pacing_.now();
  tokens_.resize(std::max(tokens_.size(), streams.size()));
  parents_.resize(tokens_.size());
  steps_.assign(company.begin(), company.end());
  first_step_ = company.size();
  Pacing::Round round;
  for (size_t i = 0; i < streams.size(); ++i) {
    add_step(*streams[i], i);
    round.rows += static_cast<int64_t>(tokens_[i].size());
  }
  drafter_->verify(session_, streams, steps_);
  for (size_t i = 0; i < streams.size(); ++i) {
    settle(*streams[i], i);
    round.tokens += static_cast<int64_t>(streams[i]->found.size());
  }
  const double end = pacing_.now();
  round.draft_seconds = proposed - start;
  round.run_seconds = end - proposed;
  statistics_.draft_seconds += round.draft_seconds;
  statistics_.seconds += end - start;
  // In company the time says nothing about these streams.
  if (company.empty()) pacing_.end_round(round);
  if (statistics_.speculative_rounds == speculative_before) {
    statistics_.plain_tokens += round.tokens;
    statistics_.plain_seconds += end - start;
  }
}

}  // namespace quern::runtime
