#include "runtime/layers/early_exit.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/error.h"
#include "runtime/layers/blocks.h"
#include "runtime/layers/exit_confidence.h"

namespace quern::runtime {
namespace {

constexpr const char* kRows = "exit.rows";

// Entries: the whole, then the segment before each exit and what fills the caches of the layers that are
// skipped there, and the segment behind the last exit.
constexpr int segment_entry(size_t exits_passed) {
  return static_cast<int>(2 * exits_passed + 1);
}
constexpr int fill_entry(size_t exit) {
  return static_cast<int>(2 * exit + 2);
}

double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

std::string_view to_string(ExitConfidence confidence) {
  switch (confidence) {
    case ExitConfidence::Margin:
      return "margin";
    case ExitConfidence::MaxProbability:
      return "max-probability";
    case ExitConfidence::Entropy:
      return "entropy";
    case ExitConfidence::Saturation:
      return "saturation";
    case ExitConfidence::Classifier:
      return "classifier";
    case ExitConfidence::Always:
      return "fixed";
  }
  return "unknown";
}

double ExitRule::threshold_at(int64_t t, int64_t n) const {
  if (decay <= 0 || n <= 0) return threshold;
  const double shifted =
      0.9 * threshold + 0.1 * std::exp(-decay * static_cast<double>(t) / static_cast<double>(n));
  return std::clamp(shifted, 0.0, 1.0);
}

int64_t ExitStatistics::total() const {
  return std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
}

double ExitStatistics::average_layers() const {
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) sum += static_cast<double>(tokens[i] * exit_after[i]);
  return total() > 0 ? sum / static_cast<double>(total()) : static_cast<double>(layers);
}

ExitStatistics& ExitStatistics::operator+=(const ExitStatistics& other) {
  if (exit_after.empty()) return *this = other;
  for (size_t i = 0; i < std::min(tokens.size(), other.tokens.size()); ++i) tokens[i] += other.tokens[i];
  return *this;
}

std::shared_ptr<const Program> compile_early_exit(const Graph& graph, const ExitRule& rule) {
  const std::unique_ptr<Graph> copy = graph.clone();
  LayerBuilder builder(*copy);
  const int64_t layers = builder.layers();
  const std::vector<int64_t> exits = exits_in_use(graph, rule, layers);
  const bool saturation = rule.confidence == ExitConfidence::Saturation;
  ProgramOptions options{.entries = {{"logits"}}, .starts = {""}};
  Value* rows = builder.given(kRows);
  int64_t from = 0;
  for (size_t i = 0; i <= exits.size(); ++i) {
    const int64_t to = i < exits.size() ? exits[i] : layers;
    Value* stream = i == 0 ? builder.stream(0) : rows;
    Value* before = stream;
    for (int64_t layer = from; layer < to; ++layer) {
      before = stream;
      stream = builder.layer(layer, stream);
    }
    std::vector<std::string> outputs;
    const auto output = [&](Value* value, const char* what) {
      outputs.push_back(concat("exit.", i, ".", what));
      builder.output(value, outputs.back());
    };
    if (i < exits.size()) {
      output(builder.exit_logits(to, stream), "logits");
      output(stream, "stream");
      if (saturation) output(before, "before");
    } else {
      output(builder.logits(stream), "logits");
    }
    options.entries.push_back(outputs);
    options.starts.push_back(i == 0 ? "" : kRows);
    if (i < exits.size()) {
      std::vector<std::string> appended;
      for (int64_t layer = to; layer < layers; ++layer) {
        appended.push_back(concat("exit.", i, ".append.", layer));
        builder.append(layer, rows, appended.back());
      }
      options.entries.push_back(appended);
      options.starts.push_back(kRows);
    }
    from = to;
  }
  builder.commit();
  return Program::compile(*copy, options);
}

EarlyExitDecoder::EarlyExitDecoder(Session& session, const Graph& graph, const ExitRule& rule)
    : session_(session), rule_(rule) {
  const int64_t layers = find_layers(graph).layers();
  rule_.layers = exits_in_use(graph, rule, layers);
  const bool classifies = rule.confidence == ExitConfidence::Classifier;
  if (classifies && rule.classifiers.size() != exits()) {
    throw_error(ErrorCode::InvalidArgument, rule.classifiers.size(), " classifiers for ", exits(), " exits");
  }
  const auto width = static_cast<size_t>(session.program().output_width(segment_entry(0), 1));
  for (const LinearClassifier& classifier : rule.classifiers) {
    if (classifies && classifier.weight.size() != width) {
      throw_error(ErrorCode::InvalidArgument, "an exit's classifier has ", classifier.weight.size(),
                  " weights; the model's width is ", width);
    }
  }
  statistics_.layers = layers;
  statistics_.exit_after = rule_.layers;
  statistics_.exit_after.push_back(layers);
  statistics_.tokens.resize(statistics_.exit_after.size());
}

// Of a row of the last run, which was the segment before this exit.
double EarlyExitDecoder::confidence(size_t exit, size_t index) const {
  const std::span<const float> logits = session_.logits(index, 0, 0), stream = session_.logits(index, 0, 1);
  switch (rule_.confidence) {
    case ExitConfidence::Always:
      return 1;
    case ExitConfidence::Saturation:
      return cosine(session_.logits(index, 0, 2), stream);
    case ExitConfidence::Classifier: {
      const LinearClassifier& classifier = rule_.classifiers[exit];
      const double sum = std::inner_product(stream.begin(), stream.end(), classifier.weight.begin(),
                                            static_cast<double>(classifier.bias));
      return 1 / (1 + std::exp(-sum));
    }
    default:
      break;
  }
  return confidence_of(rule_.confidence, logits);
}

void EarlyExitDecoder::run_entry(std::span<const SequenceStep> steps, const Group& group, int entry) {
  running_.clear();
  for (const size_t i : group.steps) {
    SequenceStep& step = running_.emplace_back(steps[i]);
    step.logits = LogitsFor::Last;
  }
  const bool first = entry == segment_entry(0);
  session_.run(running_, {.entry = entry, .rows = group.rows, .continues = !first});
}

void EarlyExitDecoder::finish(size_t step, std::span<const float> logits, size_t exit) {
  results_[step].logits.assign(logits.begin(), logits.end());
  results_[step].layers = statistics_.exit_after[exit];
}

void EarlyExitDecoder::compute(std::span<const SequenceStep> steps, std::span<const double> thresholds) {
  Group going;
  going.steps.resize(steps.size());
  std::iota(going.steps.begin(), going.steps.end(), 0);
  for (size_t exit = 0; !going.steps.empty(); ++exit) {
    run_entry(steps, going, segment_entry(exit));
    if (exit == exits()) {
      for (size_t i = 0; i < going.steps.size(); ++i) finish(going.steps[i], session_.logits(i), exit);
      break;
    }
    Group on, out;
    for (size_t i = 0; i < going.steps.size(); ++i) {
      const size_t step = going.steps[i];
      const double sure = confidence(exit, i);
      results_[step].confidences.push_back(sure);
      const bool leaves = sure >= thresholds[step];
      if (leaves) finish(step, session_.logits(i, 0, 0), exit);
      Group& group = leaves ? out : on;
      const std::span<const float> stream = session_.logits(i, 0, 1);
      group.steps.push_back(step);
      group.rows.insert(group.rows.end(), stream.begin(), stream.end());
    }
    if (!out.steps.empty()) run_entry(steps, out, fill_entry(exit));
    going = std::move(on);
  }
}

void EarlyExitDecoder::run(std::span<const SequenceStep> steps, std::span<const double> thresholds) {
  std::vector<int64_t> sizes;
  for (const SequenceStep& step : steps) {
    if (step.tokens.size() != 1)
      throw_error(ErrorCode::InvalidArgument, "early exits are taken token by token, not ",
                  step.tokens.size(), " at once");
    sizes.push_back(step.sequence->size());
  }
  results_.resize(std::max(results_.size(), steps.size()));
  for (size_t i = 0; i < steps.size(); ++i) results_[i].confidences.clear();
  try {
    compute(steps, thresholds);
  } catch (...) {
    for (size_t i = 0; i < steps.size(); ++i) {
      steps[i].sequence->rewind(steps[i].sequence->size() - sizes[i]);
    }
    throw;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto exit = std::find(statistics_.exit_after.begin(), statistics_.exit_after.end(), layers_run(i));
    ++statistics_.tokens[static_cast<size_t>(exit - statistics_.exit_after.begin())];
  }
}

EarlyExitDecoding::EarlyExitDecoding(Session& session, Sampler& sampler, const Graph& graph,
                                     const ExitRule& rule, std::shared_ptr<ExitStatistics> statistics)
    : session_(session), sampler_(sampler), decoder_(session, graph, rule), shared_(std::move(statistics)) {}

void EarlyExitDecoding::advance(std::span<GenerationStream* const> streams,
                                std::span<const SequenceStep> company) {
  steps_.clear();
  thresholds_.clear();
  for (GenerationStream* stream : streams) {
    steps_.push_back({.sequence = &stream->sequence, .tokens = std::span(stream->tokens).last(1)});
    const int64_t written = written_[stream->prompt];
    thresholds_.push_back(decoder_.rule().threshold_at(written, written + stream->most_new));
  }
  decoder_.run(steps_, thresholds_);
  try {
    // Last, since whoever asked for it reads the session's logits.
    if (!company.empty()) session_.run(company);
  } catch (...) {
    for (GenerationStream* stream : streams) stream->sequence.rewind(1);
    throw;
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    GenerationStream& stream = *streams[i];
    const int64_t token = sampler_.next(decoder_.logits(i), stream.tokens, stream.random);
    stream.tokens.push_back(token);
    stream.found.assign(1, token);
    ++written_[stream.prompt];
  }
  if (shared_ != nullptr) *shared_ = decoder_.statistics();
}

}  // namespace quern::runtime
