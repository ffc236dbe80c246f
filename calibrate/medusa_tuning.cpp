#include "calibrate/medusa_tuning.h"

#include <algorithm>
#include <chrono>

#include "ir/error.h"
#include "runtime/speculate/medusa_heads.h"

namespace quern::calibrate {
namespace {

using runtime::Session;

// Logits of all heads for rows of hidden states.
class HeadRuns {
 public:
  explicit HeadRuns(Session& session) : session_(session) {
    const runtime::Program& program = session.program();
    if (program.entries() <= runtime::kMedusaHeadsEntry ||
        program.start_width(runtime::kMedusaHeadsEntry) == 0)
      throw_error(ErrorCode::InvalidArgument, "the program was not compiled with Medusa heads");
    const std::vector<std::string>& outputs = program.outputs(runtime::kMedusaHeadsEntry);
    for (size_t k = 0; k < outputs.size(); ++k) shared_.push_back(outputs[k] != runtime::medusa_output(k));
  }
  size_t heads() const { return shared_.size(); }

  // use(head, row, logits)
  template <class Use>
  void run(const std::vector<float>& states, const Use& use) {
    const int64_t width = session_.program().start_width(runtime::kMedusaHeadsEntry);
    const int64_t rows = static_cast<int64_t>(states.size()) / width;
    session_.run_rows(runtime::kMedusaHeadsEntry, states);
    std::vector<std::vector<float>> inner(heads());
    for (size_t h = 0; h < heads(); ++h) {
      for (int64_t row = 0; row < rows; ++row) {
        const std::span<const float> out = session_.logits(0, row, static_cast<int>(h));
        if (shared_[h]) {
          inner[h].insert(inner[h].end(), out.begin(), out.end());
        } else {
          use(h, row, out);
        }
      }
    }
    for (size_t h = 0; h < heads(); ++h) {
      if (!shared_[h]) continue;
      session_.run_rows(runtime::kMedusaProjectionEntry, inner[h]);
      for (int64_t row = 0; row < rows; ++row) use(h, row, session_.logits(0, row));
    }
  }

 private:
  Session& session_;
  std::vector<bool> shared_;
};

// Hidden states and the tokens behind them: head h, from the state of row i, guesses next[i + 1 + h].
struct Track {
  std::vector<float> states;
  std::vector<int64_t> next;
};

class Counter {
 public:
  Counter(HeadRuns& heads, int64_t ranks) : heads_(heads), ranks_(ranks) {
    counts_.assign(heads.heads(), std::vector<int64_t>(static_cast<size_t>(ranks)));
    seen_.assign(heads.heads(), 0);
  }
  void add(const Track& track) {
    heads_.run(track.states, [&](size_t head, int64_t row, std::span<const float> logits) {
      const auto at = static_cast<size_t>(row) + 1 + head;
      if (at >= track.next.size()) return;
      ++seen_[head];
      const auto target = static_cast<size_t>(track.next[at]);
      int64_t rank = 0;
      for (size_t id = 0; id < logits.size() && rank < ranks_; ++id)
        rank += logits[id] > logits[target] || (logits[id] == logits[target] && id < target) ? 1 : 0;
      if (rank < ranks_) ++counts_[head][static_cast<size_t>(rank)];
    });
  }
  std::vector<std::vector<double>> rates() const {
    std::vector<std::vector<double>> rates;
    for (size_t h = 0; h < counts_.size(); ++h) {
      std::vector<double>& row = rates.emplace_back();
      for (const int64_t count : counts_[h])
        row.push_back(static_cast<double>(count) / static_cast<double>(std::max<int64_t>(1, seen_[h])));
    }
    return rates;
  }
  int64_t positions() const { return seen_.empty() ? 0 : seen_.front(); }

 private:
  HeadRuns& heads_;
  int64_t ranks_;
  std::vector<std::vector<int64_t>> counts_;
  std::vector<int64_t> seen_;
};

void append(std::vector<float>& to, std::span<const float> row) {
  to.insert(to.end(), row.begin(), row.end());
}

int64_t likeliest(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// What the text itself goes on with.
Track track_text(Session& session, const std::vector<int64_t>& piece) {
  runtime::Sequence sequence = session.new_sequence();
  const runtime::SequenceStep step{.sequence = &sequence, .tokens = piece, .logits = runtime::LogitsFor::All};
  session.run({&step, 1});
  Track track;
  for (size_t t = 0; t < piece.size(); ++t)
    append(track.states, session.logits(0, static_cast<int64_t>(t), runtime::kMedusaHiddenOutput));
  track.next.assign(piece.begin() + 1, piece.end());
  return track;
}

// What the model goes on with, greedily.
Track track_model(Session& session, std::span<const int64_t> prompt, int64_t tokens) {
  runtime::Sequence sequence = session.new_sequence();
  Track track;
  std::vector<int64_t> now(prompt.begin(), prompt.end());
  for (int64_t i = 0; i < tokens; ++i) {
    const runtime::SequenceStep step{.sequence = &sequence, .tokens = now};
    session.run({&step, 1});
    append(track.states, session.logits(0, 0, runtime::kMedusaHiddenOutput));
    track.next.push_back(likeliest(session.logits(0)));
    now.assign(1, track.next.back());
  }
  return track;
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

template <class Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

MedusaAccuracies measure_medusa_heads(Session& session, std::span<const std::vector<int64_t>> pieces,
                                      const MedusaMeasure& options) {
  HeadRuns heads(session);
  Counter by_model(heads, options.ranks), by_text(heads, options.ranks);
  int64_t done = 0;
  for (const std::vector<int64_t>& piece : pieces) {
    if (options.progress) options.progress(done++, static_cast<int64_t>(pieces.size()));
    if (static_cast<int64_t>(piece.size()) < options.prompt || options.prompt < 1) {
      throw_error(ErrorCode::InvalidArgument, "a piece of text has ", piece.size(),
                  " tokens, fewer than the ", options.prompt, " of a prompt");
    }
    by_text.add(track_text(session, piece));
    by_model.add(
        track_model(session, std::span(piece).first(static_cast<size_t>(options.prompt)), options.generate));
  }
  return {by_model.rates(), by_text.rates(), by_model.positions(), by_text.positions()};
}

double MedusaCosts::run(int64_t rows) const {
  size_t i = 1;
  while (i + 1 < runs.size() && runs[i].first < rows) ++i;
  if (runs.size() < 2) return runs.front().second;
  const auto& [from, before] = runs[i - 1];
  const auto& [to, after] = runs[i];
  return before + (after - before) * static_cast<double>(rows - from) / static_cast<double>(to - from);
}

MedusaCosts measure_medusa_costs(Session& session, int64_t context, int64_t most) {
  constexpr int kRepeats = 15;
  HeadRuns heads(session);
  runtime::Sequence sequence = session.new_sequence();
  const std::vector<int64_t> before(static_cast<size_t>(std::max<int64_t>(1, context)), 1);
  session.run(sequence, before);
  const auto last = session.logits(0, 0, runtime::kMedusaHiddenOutput);
  const std::vector<float> state(last.begin(), last.end());
  std::vector<int64_t> sizes;
  for (int64_t rows = 1; rows < most; rows = rows < 4 ? rows + 1 : rows + rows / 2) sizes.push_back(rows);
  sizes.push_back(std::max<int64_t>(1, most));
  std::vector<std::vector<double>> times(sizes.size());
  std::vector<double> head_times;
  // In turns, so that whatever else the machine does meets all alike; the first turn touches the memory.
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::vector<int64_t> tokens(static_cast<size_t>(sizes[i]), 1);
      // A bush: all behind the first one.
      std::vector<int32_t> parents(tokens.size(), 0);
      parents[0] = -1;
      const runtime::SequenceStep step{
          .sequence = &sequence, .tokens = tokens, .parents = parents, .logits = runtime::LogitsFor::All};
      const double seconds = seconds_of([&] { session.run({&step, 1}); });
      sequence.rewind(sizes[i]);
      if (repeat > 0) times[i].push_back(seconds);
    }
    const double seconds =
        seconds_of([&] { heads.run(state, [](size_t, int64_t, std::span<const float>) {}); });
    if (repeat > 0) head_times.push_back(seconds);
  }
  MedusaCosts costs{.runs = {}, .heads = median(head_times)};
  for (size_t i = 0; i < sizes.size(); ++i) costs.runs.emplace_back(sizes[i], median(times[i]));
  return costs;
}

MedusaChoice choose_medusa_tree(const MedusaAccuracies& accuracies, const MedusaCosts& costs, int64_t nodes,
                                int64_t most) {
  const auto choice_of = [&](int64_t count) {
    MedusaChoice choice{.tree = runtime::best_medusa_tree(accuracies.model, static_cast<size_t>(count))};
    choice.expected_tokens = runtime::expected_tokens(choice.tree, accuracies.model);
    const double run = costs.run(1 + static_cast<int64_t>(choice.tree.size())) + costs.heads;
    choice.expected_speedup = choice.expected_tokens * costs.run(1) / run;
    return choice;
  };
  if (nodes > 0) return choice_of(nodes);
  MedusaChoice best = choice_of(1);
  for (int64_t count = 2; count <= most; ++count) {
    MedusaChoice choice = choice_of(count);
    if (choice.expected_speedup > best.expected_speedup) best = std::move(choice);
  }
  return best;
}

}  // namespace quern::calibrate
