#include "runtime/speculate/model_drafter.h"

#include <algorithm>
#include <array>
#include <limits>

#include "runtime/speculate/pacing.h"

namespace quern::runtime {
namespace {

// Classes of chosen tokens by how far their logit is above the second, and of drawn ones by their
// probability.
constexpr std::array kMargins = {0.25f, 0.5f, 0.75f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
constexpr std::array kProbabilities = {0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95};

template <class Bounds, class Value>
int32_t class_of(const Bounds& bounds, Value value) {
  return static_cast<int32_t>(std::upper_bound(bounds.begin(), bounds.end(), value) - bounds.begin());
}

// How far the greatest logit is above the second.
float margin(std::span<const float> logits) {
  float first = -std::numeric_limits<float>::infinity(), second = first;
  for (const float value : logits) {
    if (!(value > second)) continue;
    second = std::min(value, first);
    first = std::max(value, first);
  }
  return first - second;
}

}  // namespace

ModelDrafter::ModelDrafter(std::shared_ptr<const Program> program, const ModelDrafterOptions& options)
    : session_(std::move(program), options.session),
      sampler_(options.sampling),
      options_(options),
      vocabulary_(session_.program().traits().vocabulary) {
  if (options.vocabulary > 0) vocabulary_ = std::min(vocabulary_, options.vocabulary);
}

int ModelDrafter::classes() const {
  return static_cast<int>(kMargins.size()) + 1;
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
    // A stream of its own, that no prompt draws from.
    at->second.random = RandomStream(options_.sampling.seed ^ 0xA0761D6478BD642FULL, stream.prompt);
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

int64_t ModelDrafter::guess(const GenerationStream& stream, Text& text, std::span<const float> logits,
                            Proposal& proposal) {
  logits = logits.first(static_cast<size_t>(vocabulary_));
  const auto parent = static_cast<int32_t>(proposal.size()) - 1;
  if (!options_.sampling.sample) {
    // Without penalties, which history would tell about, this is the argmax.
    RandomStream none;
    const int64_t token = sampler_.next(logits, text.tokens, none);
    proposal.add(token, parent, class_of(kMargins, margin(logits)));
    return token;
  }
  const std::span<const TokenProbability> q = sampler_.distribution(logits, text.tokens);
  int64_t token = 0;
  if (options_.rule == DraftRule::Shared) {
    RandomStream ahead = stream.random;
    ahead.set_counter(ahead.counter() + proposal.size());
    token = draw(q, ahead);
  } else {
    token = draw(q, text.random);
    proposal.drawn_from.emplace_back(q.begin(), q.end());
  }
  const auto at = std::find_if(q.begin(), q.end(),
                               [&](const TokenProbability& candidate) { return candidate.id == token; });
  proposal.add(token, parent, class_of(kProbabilities, at->probability));
  return token;
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
      now.text->tokens.push_back(guess(*streams[now.stream], *now.text, session_.logits(a), proposal));
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
