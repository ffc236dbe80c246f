#include "runtime/speculate/medusa_drafter.h"

#include <algorithm>
#include <array>
#include <queue>

#include "ir/error.h"
#include "runtime/cpu/row_kernels.h"
#include "runtime/speculate/medusa_heads.h"
#include "runtime/speculate/pacing.h"

namespace quern::runtime {
namespace {

constexpr size_t kGrownRanks = 8;  // of a head, where the tree is grown
constexpr std::array kProbabilities = {0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95};
constexpr int kBuckets = static_cast<int>(kProbabilities.size()) + 1;

}  // namespace

MedusaDrafter::MedusaDrafter(Session& session, MedusaTree tree) : session_(session), tree_(std::move(tree)) {
  const Program& program = session.program();
  if (program.entries() <= kMedusaHeadsEntry || program.start_width(kMedusaHeadsEntry) == 0) {
    throw_error(ErrorCode::InvalidArgument,
                "the program was not compiled with Medusa heads: see medusa_program()");
  }
  const std::vector<std::string>& outputs = program.outputs(kMedusaHeadsEntry);
  heads_ = static_cast<int64_t>(outputs.size());
  for (size_t k = 0; k < outputs.size(); ++k) shared_.push_back(outputs[k] != medusa_output(k));
  if (tree_.heads() > heads_) {
    throw_error(ErrorCode::InvalidArgument, "the tree is ", tree_.heads(), " tokens deep, the model has ",
                heads_, " Medusa heads");
  }
  ranks_ = kGrownRanks;
  for (int32_t h = 0; h < tree_.heads(); ++h) ranks_ = std::max(ranks_, static_cast<size_t>(tree_.ranks(h)));
  ranks_ = std::min(ranks_, static_cast<size_t>(program.traits().vocabulary));
}

int MedusaDrafter::classes() const {
  return static_cast<int>(heads_) * kBuckets;
}

int32_t MedusaDrafter::class_of(size_t head, double probability) {
  const auto bucket = std::upper_bound(kProbabilities.begin(), kProbabilities.end(), probability);
  return static_cast<int32_t>(head) * kBuckets + static_cast<int32_t>(bucket - kProbabilities.begin());
}

// Heads are trained to say how likely their tokens are: the middle of the bucket.
double MedusaDrafter::prior(int32_t token_class) const {
  const auto bucket = static_cast<size_t>(token_class % kBuckets);
  const double below = bucket == 0 ? 0 : kProbabilities[bucket - 1];
  const double above = bucket < kProbabilities.size() ? kProbabilities[bucket] : 1;
  return (below + above) / 2;
}

void MedusaDrafter::computed(const GenerationStream& stream, size_t step, int64_t row) {
  const std::span<const float> state = session_.logits(step, row, kMedusaHiddenOutput);
  states_[stream.prompt].assign(state.begin(), state.end());
}

// The `count` likeliest, by logit; of equal ones the lower id first.
void MedusaDrafter::choose(std::span<const float> logits, size_t count, std::vector<Choice>& choices) {
  probabilities_.resize(logits.size());
  cpu::row_kernels().softmax(logits.data(), probabilities_.data(), static_cast<int64_t>(logits.size()));
  choices.clear();
  float least = -1;
  for (size_t id = 0; id < probabilities_.size(); ++id) {
    const float p = probabilities_[id];
    if (!(p > least)) continue;
    if (choices.size() == count) choices.pop_back();
    const auto place = std::find_if(choices.begin(), choices.end(),
                                    [p](const Choice& other) { return p > other.probability; });
    choices.insert(place, {static_cast<int64_t>(id), p});
    if (choices.size() == count) least = static_cast<float>(choices.back().probability);
  }
}

// All heads of the streams, in one run or two.
void MedusaDrafter::compute(std::span<GenerationStream* const> streams, std::span<const size_t> asked) {
  rows_.clear();
  for (const size_t i : asked) {
    const std::vector<float>& state = states_.at(streams[i]->prompt);
    rows_.insert(rows_.end(), state.begin(), state.end());
  }
  session_.run_rows(kMedusaHeadsEntry, rows_);
  projected_.clear();
  choices_.resize(std::max(choices_.size(), asked.size()));
  for (size_t a = 0; a < asked.size(); ++a) {
    choices_[a].resize(static_cast<size_t>(heads_));
    for (size_t h = 0; h < choices_[a].size(); ++h) {
      const std::span<const float> out = session_.logits(0, static_cast<int64_t>(a), static_cast<int>(h));
      if (shared_[h] != 0) {
        projected_.insert(projected_.end(), out.begin(), out.end());
      } else {
        choose(out, ranks_, choices_[a][h]);
      }
    }
  }
  if (projected_.empty()) return;
  session_.run_rows(kMedusaProjectionEntry, projected_);
  int64_t row = 0;
  for (size_t a = 0; a < asked.size(); ++a) {
    for (size_t h = 0; h < choices_[a].size(); ++h) {
      if (shared_[h] != 0) choose(session_.logits(0, row++), ranks_, choices_[a][h]);
    }
  }
}

void MedusaDrafter::follow(const Choices& choices, int64_t depth, Proposal& proposal) const {
  std::vector<int32_t> places(tree_.size(), -1);  // of the tree's nodes in the proposal
  for (size_t i = 0; i < tree_.size(); ++i) {
    const MedusaTree::Node& node = tree_.nodes()[i];
    const auto head = static_cast<size_t>(node.head), rank = static_cast<size_t>(node.rank);
    const int32_t parent = node.parent < 0 ? -1 : places[static_cast<size_t>(node.parent)];
    if (node.head >= depth || rank >= choices[head].size() || (node.parent >= 0 && parent < 0)) continue;
    places[i] = static_cast<int32_t>(proposal.size());
    proposal.add(choices[head][rank].token, parent, class_of(head, choices[head][rank].probability));
  }
}

void MedusaDrafter::grow(const Choices& choices, int64_t depth, const Pacing& pacing,
                         Proposal& proposal) const {
  struct Next {
    double reach;
    int32_t order;  // of finding, so that equal ones have an order
    int32_t parent;
    size_t head, rank;
  };
  const auto later = [](const Next& a, const Next& b) {
    return a.reach != b.reach ? a.reach < b.reach : a.order > b.order;
  };
  std::priority_queue<Next, std::vector<Next>, decltype(later)> open(later);
  int32_t found = 0;
  const auto add_children = [&](int32_t parent, double reach, size_t head) {
    for (size_t rank = 0; rank < choices[head].size(); ++rank) {
      const double rate = pacing.acceptance(class_of(head, choices[head][rank].probability));
      open.push({reach * rate, found++, parent, head, rank});
    }
  };
  add_children(-1, 1, 0);
  while (!open.empty() && static_cast<int64_t>(proposal.size()) < pacing.most()) {
    const Next next = open.top();
    open.pop();
    const auto node = static_cast<int32_t>(proposal.size());
    const Choice& choice = choices[next.head][next.rank];
    proposal.add(choice.token, next.parent, class_of(next.head, choice.probability));
    if (static_cast<int64_t>(next.head) + 1 < std::min(depth, heads_))
      add_children(node, next.reach, next.head + 1);
  }
}

void MedusaDrafter::propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits,
                            Pacing& pacing, std::span<Proposal> proposals) {
  std::vector<size_t> asked;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (limits[i] > 0 && states_.contains(streams[i]->prompt)) asked.push_back(i);
  }
  if (asked.empty()) return;
  compute(streams, asked);
  for (size_t a = 0; a < asked.size(); ++a) {
    const size_t i = asked[a];
    if (tree_.empty()) {
      grow(choices_[a], limits[i], pacing, proposals[i]);
    } else {
      follow(choices_[a], limits[i], proposals[i]);
    }
  }
}

}  // namespace quern::runtime
