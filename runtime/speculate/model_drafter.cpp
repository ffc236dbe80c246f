#include "runtime/speculate/model_drafter.h"

#include <algorithm>

#include "runtime/speculate/pacing.h"

namespace quern::runtime {
ModelDrafter::ModelDrafter(std::shared_ptr<const Program> program, const ModelDrafterOptions& options)
    : session_(std::move(program), options.session),
      sampler_(options.sampling, options.rule),
      options_(options),
      vocabulary_(session_.program().traits().vocabulary) {
  if (options.vocabulary > 0) vocabulary_ = std::min(vocabulary_, options.vocabulary);
}

int ModelDrafter::classes() const {
  return DraftSampler::classes();
}

bool ModelDrafter::can_follow(const GenerationStream& stream, int64_t limit) const {
  const int64_t context = session_.options().context;
  const auto size = static_cast<int64_t>(stream.tokens.size());
  return limit > 0 && (context == 0 || size + limit - 1 <= context);
}

ModelDrafter::Text& ModelDrafter::text_of(const GenerationStream& stream) {
  const auto [at, added] = texts_.try_emplace(stream.prompt);
  if (added) {
    at->second.sequence = session_.new_sequence();
    at->second.random = sampler_.random_for(stream.prompt);
  }
  return at->second;
}

// Takes back what the model did not accept; at least the last token is to be computed again.
void ModelDrafter::catch_up(Text& text, const GenerationStream& stream) {
  const std::span<const int64_t> known = text.sequence.tokens();
  const size_t most = std::min(known.size(), stream.tokens.size() - 1);
  while (text.agreed < most && known[text.agreed] == stream.tokens[text.agreed]) ++text.agreed;
  text.sequence.rewind(static_cast<int64_t>(known.size() - text.agreed));
  text.tokens = stream.tokens;
}

// Appends to every sequence what its text has more.
void ModelDrafter::run(std::span<const Active> active) {
  steps_.clear();
  for (const Active& a : active) {
    const auto done = static_cast<size_t>(a.text->sequence.size());
    steps_.push_back({.sequence = &a.text->sequence, .tokens = std::span(a.text->tokens).subspan(done)});
  }
  session_.run(steps_);
}

void ModelDrafter::propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits,
                           Pacing& pacing, std::span<Proposal> proposals) {
  if (!pacing.worth_one_more(1, 0)) return;
  std::vector<Active> active, next;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (!can_follow(*streams[i], limits[i])) continue;
    Text& text = text_of(*streams[i]);
    catch_up(text, *streams[i]);
    // Ids that this model lacks can't be followed.
    const auto foreign = [&](int64_t id) { return id >= session_.program().traits().vocabulary; };
    const auto fresh = text.tokens.begin() + text.sequence.size();
    if (std::any_of(fresh, text.tokens.end(), foreign)) continue;
    active.push_back({.stream = i, .text = &text});
  }
  for (bool first = true; !active.empty(); first = false) {
    const double start = pacing.now();
    run(active);
    next.clear();
    for (size_t a = 0; a < active.size(); ++a) {
      Active& now = active[a];
      Proposal& proposal = proposals[now.stream];
      const std::span<const float> logits = session_.logits(a).first(static_cast<size_t>(vocabulary_));
      now.text->tokens.push_back(
          sampler_.guess(logits, now.text->tokens, streams[now.stream]->random, now.text->random, proposal));
      now.reached *= pacing.acceptance(proposal.classes.back());
      const auto depth = static_cast<int64_t>(proposal.size());
      if (depth < limits[now.stream] && pacing.worth_one_more(now.reached, depth)) next.push_back(now);
    }
    // The first run may have a prompt to catch up with.
    if (!first) pacing.record_draft_step(static_cast<int64_t>(active.size()), pacing.now() - start);
    active.swap(next);
  }
}

}  // namespace quern::runtime
