#include "runtime/speculate/self_drafter.h"

#include <algorithm>
#include <numeric>

#include "ir/error.h"
#include "runtime/decoder/plan.h"
#include "runtime/layers/blocks.h"
#include "runtime/speculate/pacing.h"

namespace quern::runtime {
namespace {

constexpr const char* kDraftLogits = "self.draft_logits";
constexpr const char* kUpperLogits = "self.upper_logits";
constexpr const char* kStream = "self.stream";

void check(const SelfDraft& draft, int64_t layers) {
  int64_t last = -1;
  for (const int64_t layer : draft.layers) {
    if (layer <= last || layer >= layers) {
      throw_error(ErrorCode::InvalidArgument, "the layers of a draft must ascend and be some of the model's ",
                  layers, ", counted from 0; ", layer, " does not");
    }
    last = layer;
  }
  const auto count = static_cast<int64_t>(draft.layers.size());
  if (count == 0 || count >= layers) {
    throw_error(ErrorCode::InvalidArgument, "a draft of ", count, " of the model's ", layers,
                " layers saves nothing: it must have one at least, and leave one out");
  }
  if (draft.exit_head && draft.layers.back() + 1 != count) {
    throw_error(ErrorCode::InvalidArgument, "an exit head stands behind the first ", draft.layers.back() + 1,
                " layers; none of them may be left out");
  }
}

}  // namespace

std::shared_ptr<const Program> compile_self_draft(const Graph& graph, const SelfDraft& draft) {
  const std::unique_ptr<Graph> copy = graph.clone();
  LayerBuilder builder(*copy);
  const int64_t layers = builder.layers();
  check(draft, layers);
  int64_t shared = 0;
  while (shared < static_cast<int64_t>(draft.layers.size()) &&
         draft.layers[static_cast<size_t>(shared)] == shared) {
    ++shared;
  }
  Value* stream = builder.stream(shared);
  for (const int64_t layer : draft.layers) {
    if (layer > shared) stream = builder.layer(layer, stream);
  }
  builder.output(draft.exit_head ? builder.exit_logits(shared, stream) : builder.logits(stream),
                 kDraftLogits);
  ProgramOptions options{.entries = {{"logits"}, {kDraftLogits}}};
  if (shared > 0) {
    Value* rest = builder.given(kStream);
    for (int64_t layer = shared; layer < layers; ++layer) rest = builder.layer(layer, rest);
    builder.output(builder.logits(rest), kUpperLogits);
  }
  builder.commit();
  if (shared > 0) {
    const std::string name = builder.stream(shared)->name();
    options.entries[SelfDrafter::kDraft].push_back(name);
    options.entries.push_back({name});
    options.entries.push_back({kUpperLogits});
    options.starts = {"", "", "", kStream};
  }
  return Program::compile(*copy, options);
}

SelfDraft default_self_draft(const Graph& graph) {
  SelfDraft draft;
  const int64_t layers = find_layers(graph).layers();
  const std::vector<int64_t> exits = exits_of(graph);
  draft.exit_head = !exits.empty() && exits.front() < layers;
  draft.layers.resize(
      static_cast<size_t>(draft.exit_head ? exits.front() : std::max<int64_t>(1, layers / 3)));
  std::iota(draft.layers.begin(), draft.layers.end(), 0);
  return draft;
}

SelfDrafter::SelfDrafter(Session& session, const SamplingOptions& sampling, DraftRule rule)
    : session_(session), sampler_(sampling, rule) {
  const Program& program = session.program();
  if (program.plan().entries.size() < 2) {
    throw_error(ErrorCode::InvalidArgument,
                "the session's program was not compiled for self-speculation: call compile_self_draft()");
  }
  shares_layers_ = program.outputs(kDraft).size() == 2;
}

SelfDrafter::Text& SelfDrafter::text_of(const GenerationStream& stream) {
  const auto [at, added] = texts_.try_emplace(stream.prompt);
  if (added) at->second.random = sampler_.random_for(stream.prompt);
  return at->second;
}

// One more token of every active stream, by the layers that guess.
void SelfDrafter::draft(std::span<const Active> active, std::span<GenerationStream* const> streams) {
  steps_.clear();
  for (const Active& a : active) {
    steps_.push_back({.sequence = &streams[a.stream]->sequence, .tokens = std::span(a.text->tokens).last(1)});
  }
  session_.run(steps_, {.entry = kDraft});
  for (size_t i = 0; i < active.size(); ++i) {
    Text& text = *active[i].text;
    ++text.drafted;
    if (!shares_layers_) continue;
    const std::span<const float> row = session_.logits(i, 0, 1);
    text.rows.insert(text.rows.end(), row.begin(), row.end());
  }
}

void SelfDrafter::take_back(std::span<GenerationStream* const> streams) {
  for (GenerationStream* stream : streams) {
    const auto text = texts_.find(stream->prompt);
    if (text == texts_.end()) continue;
    stream->sequence.rewind(text->second.drafted);
    text->second.drafted = 0;
    text->second.rows.clear();
  }
}

void SelfDrafter::propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits,
                          Pacing& pacing, std::span<Proposal> proposals) {
  if (!pacing.worth_one_more(1, 0)) return;
  std::vector<Active> active, next;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (limits[i] <= 0) continue;
    Text& text = text_of(*streams[i]);
    text.tokens = streams[i]->tokens;
    active.push_back({.stream = i, .text = &text});
  }
  try {
    while (!active.empty()) {
      const double start = pacing.now();
      draft(active, streams);
      next.clear();
      for (size_t a = 0; a < active.size(); ++a) {
        Active& now = active[a];
        Proposal& proposal = proposals[now.stream];
        now.text->tokens.push_back(sampler_.guess(session_.logits(a), now.text->tokens,
                                                  streams[now.stream]->random, now.text->random, proposal));
        now.reached *= pacing.acceptance(proposal.classes.back());
        const auto depth = static_cast<int64_t>(proposal.size());
        if (depth < limits[now.stream] && pacing.worth_one_more(now.reached, depth)) next.push_back(now);
      }
      pacing.record_draft_step(static_cast<int64_t>(active.size()), pacing.now() - start);
      active.swap(next);
    }
  } catch (...) {
    take_back(streams);
    throw;
  }
  if (!shares_layers_) take_back(streams);
}

// Brings all tokens of the steps behind the shared layers, and collects the stream there.
void SelfDrafter::lower(std::span<GenerationStream* const> streams, std::span<const SequenceStep> steps) {
  const size_t company = steps.size() - streams.size();
  std::vector<SequenceStep> missing;
  std::vector<Text*> texts(steps.size(), nullptr);
  int64_t count = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    SequenceStep& step = missing.emplace_back(steps[i]);
    step.logits = LogitsFor::All;
    step.logit_tokens = {};
    if (i >= company) {
      Text& text = text_of(*streams[i - company]);
      texts[i] = &text;
      const auto kept = std::min(text.drafted, static_cast<int64_t>(step.tokens.size()));
      step.sequence->rewind(text.drafted - kept);
      text.drafted = kept;
      step.tokens = step.tokens.subspan(static_cast<size_t>(kept));
    }
    count += static_cast<int64_t>(step.tokens.size());
  }
  if (count > 0) session_.run(missing, {.entry = kLower});
  rows_.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (texts[i] != nullptr) {
      const auto width = session_.program().output_width(kDraft, 1);
      const auto kept = texts[i]->rows.begin() + texts[i]->drafted * width;
      rows_.insert(rows_.end(), texts[i]->rows.begin(), kept);
    }
    for (size_t row = 0; row < missing[i].tokens.size(); ++row) {
      const std::span<const float> stream = session_.logits(i, static_cast<int64_t>(row));
      rows_.insert(rows_.end(), stream.begin(), stream.end());
    }
  }
}

void SelfDrafter::verify(Session& session, std::span<GenerationStream* const> streams,
                         std::span<const SequenceStep> steps) {
  const bool any = std::any_of(streams.begin(), streams.end(), [&](const GenerationStream* stream) {
    const auto text = texts_.find(stream->prompt);
    return text != texts_.end() && text->second.drafted > 0;
  });
  if (!any) return session.run(steps);
  std::vector<int64_t> sizes;
  for (const SequenceStep& step : steps) sizes.push_back(step.sequence->size());
  for (size_t i = 0; i < streams.size(); ++i) {
    sizes[steps.size() - streams.size() + i] -= text_of(*streams[i]).drafted;
  }
  const auto forget_drafts = [&] {
    for (GenerationStream* stream : streams) {
      Text& text = text_of(*stream);
      text.drafted = 0;
      text.rows.clear();
    }
  };
  try {
    lower(streams, steps);
    session.run(steps, {.entry = kUpper, .rows = rows_, .continues = true});
  } catch (...) {
    for (size_t i = 0; i < steps.size(); ++i) {
      steps[i].sequence->rewind(steps[i].sequence->size() - sizes[i]);
    }
    forget_drafts();
    throw;
  }
  forget_drafts();
}

}  // namespace quern::runtime
