#include "passes/quantize/balance_channels.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "calibrate/activation_runner.h"
#include "calibrate/samples.h"
#include "calibrate/table.h"
#include "ir/activation_scheme.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "ir/weight_ops.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/quantize/calibrate_weights.h"
#include "passes/quantize/channel_groups.h"
#include "passes/quantize/channel_scales.h"
#include "passes/quantize/importance.h"
#include "passes/quantize/needs_data.h"
#include "passes/weights/materialize.h"

namespace quern::passes {
namespace {

using calibrate::ActivationRows;
using calibrate::ActivationRunner;

Tensor floats_of(const Value& value) {
  Constant constant = materialize(value);
  if (const auto* quantized = std::get_if<QuantizedTensor>(&constant)) return dequantize(*quantized);
  if (const auto* packed = std::get_if<PackedTensor>(&constant)) return packed->dequantize();
  const Tensor& tensor = std::get<Tensor>(constant);
  return tensor.dtype() == DType::F32 ? tensor : tensor.cast(DType::F32);
}

// Of one input while samples stream by.
struct Seen {
  ChannelFacts facts;
  std::vector<double> absolute, squares;
  int64_t rows = 0;

  void add(const ActivationRows& shown, int64_t every, size_t most_rows) {
    const auto width = static_cast<size_t>(shown.width);
    facts.cols = shown.width;
    facts.absmax.resize(width);
    absolute.resize(width);
    squares.resize(width);
    for (int64_t r = 0; r < shown.rows; ++r, ++rows) {
      const std::span<const float> row = shown.row(r);
      for (size_t c = 0; c < width; ++c) {
        facts.absmax[c] = std::max(facts.absmax[c], std::abs(row[c]));
        absolute[c] += std::abs(static_cast<double>(row[c]));
        squares[c] += static_cast<double>(row[c]) * static_cast<double>(row[c]);
      }
      if (rows % every == 0 && facts.rows.size() < most_rows * width)
        facts.rows.insert(facts.rows.end(), row.begin(), row.end());
    }
  }
  void finish() {
    for (const double sum : absolute)
      facts.mean_abs.push_back(static_cast<float>(sum / static_cast<double>(rows)));
    for (const double sum : squares)
      facts.mean_square.push_back(static_cast<float>(sum / static_cast<double>(rows)));
  }
};

std::string family_of(const Node& linear) {
  return linear.input(1)->producer()->string_attribute(kBalanceAttribute, "");
}

// One scale for all tokens counts as one of each token: judged by itself it favours factors that fit the
// extremes of the samples, beyond which other texts go.
ScaledProduct::Input input_of(const Node& linear) {
  using Input = ScaledProduct::Input;
  if (linear.has_attribute(kStaticActivations)) return Input::Token;
  switch (activation_scheme(linear).kind) {
    case ActivationScheme::Kind::None:
      return Input::Float;
    case ActivationScheme::Kind::Group:
      return Input::TokenAndGroup;
    case ActivationScheme::Kind::Token:
    case ActivationScheme::Kind::TokenAsymmetric:
    case ActivationScheme::Kind::Static:
      return Input::Token;
  }
  return Input::Float;
}

class Balancer {
 public:
  Balancer(Graph& graph, PassContext& context, int64_t rows)
      : graph_(graph), context_(context), rows_(rows) {}

  PassReport run() {
    std::vector<std::pair<const Node*, std::string>> rejected;
    std::vector<ChannelGroup> groups = find_channel_groups(graph_, &rejected);
    for (const auto& [node, reason] : rejected) context_.explain_failure(report_, *node, reason);
    std::erase_if(groups, [](const ChannelGroup& group) {
      return std::none_of(group.consumers.begin(), group.consumers.end(),
                          [](const Node* node) { return !family_of(*node).empty(); });
    });
    if (groups.empty()) {
      report_.notes.emplace_back(
          "nothing was scaled: no norm or projection feeds products alone (--explain-pass balance-channels)");
    }
    const std::map<std::string, ChannelFacts> facts = observe(groups);
    for (size_t i = 0; i < groups.size(); ++i) {
      context_.report_progress("scales of '" + groups[i].input->name() + "'",
                               0.5 + 0.5 * static_cast<double>(i) / static_cast<double>(groups.size()));
      const auto found = facts.find(groups[i].input->name());
      if (found != facts.end())
        choices_.push_back(choose(groups[i], found->second));
      else
        choices_.emplace_back();
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      if (!choices_[i].scales.empty())
        apply(groups[i], choices_[i].scales, facts.at(groups[i].input->name()));
    }
    remove_marks();
    summarize();
    return std::move(report_);
  }

 private:
  std::map<std::string, ChannelFacts> observe(const std::vector<ChannelGroup>& groups) {
    std::map<std::string, ChannelFacts> facts;
    if (groups.empty()) return facts;
    std::vector<std::string> taps;
    int64_t width = 0;
    for (const ChannelGroup& group : groups) {
      taps.push_back(group.input->name());
      width += static_cast<int64_t>(group.source_channel.size());
    }
    if (context_.samples == nullptr) {
      for (const std::string& tap : taps) add_from_table(tap, facts);
      return facts;
    }
    constexpr int64_t kBytes = 64'000'000;
    const int64_t kept = std::clamp<int64_t>(kBytes / (4 * width), 1, rows_);
    const std::unique_ptr<Graph> model = float_model();
    const calibrate::Samples& samples = *context_.samples;
    const int64_t every = std::max<int64_t>(1, context_.samples->tokens() / kept);
    std::vector<Seen> seen(taps.size());
    ActivationRunner runner(*model, taps, calibrate::runner_options(samples, context_.threads));
    for (int64_t i = 0; i < samples.count(); ++i) {
      context_.report_progress("ranges of channels",
                               0.5 * static_cast<double>(i) / static_cast<double>(samples.count()));
      runner.run(samples, i, [&](const ActivationRows& rows) {
        seen[rows.tap].add(rows, every, static_cast<size_t>(kept));
      });
    }
    for (size_t i = 0; i < taps.size(); ++i) {
      if (seen[i].rows == 0) continue;
      seen[i].finish();
      facts[taps[i]] = std::move(seen[i].facts);
    }
    return facts;
  }

  void add_from_table(const std::string& tap, std::map<std::string, ChannelFacts>& facts) {
    const auto found = context_.table->tensors.find(tap);
    if (found == context_.table->tensors.end()) {
      throw_error(ErrorCode::InvalidArgument, "the calibration table has nothing about '", tap,
                  "'; it was made of another model or by another version");
    }
    const calibrate::Observer& observer = found->second;
    if (observer.rows() == 0) {
      report_.notes.push_back(concat("no sample reached '", tap, "': its channels stay as they are"));
      return;
    }
    const auto floats = [](const std::vector<double>& values) {
      return std::vector<float>(values.begin(), values.end());
    };
    facts[tap] = {.cols = observer.width(),
                  .absmax = observer.channel_absmax(),
                  .mean_abs = floats(observer.channel_mean_abs()),
                  .mean_square = floats(observer.channel_mean_square())};
  }

  // The decoder before any weight is quantized.
  std::unique_ptr<Graph> float_model() {
    std::unique_ptr<Graph> model = graph_.clone();
    Rewriter rewriter(*model);
    for (Node* node : model->nodes()) {
      if (node->is("QuantizeWeight", kQuernDomain)) rewriter.replace(node->output(), node->input(0));
      if (node->has_attribute(kStaticActivations)) rewriter.remove_attribute(node, kStaticActivations);
    }
    rewriter.commit();
    MaterializeWeights().run(*model, context_);
    return model;
  }

  ChannelChoice choose(const ChannelGroup& group, const ChannelFacts& facts) {
    std::vector<ScaledProduct> products;
    std::string family;
    for (const Node* linear : group.consumers) {
      const Node* decision = linear->input(1)->producer();
      if (family.empty()) family = family_of(*linear);
      products.push_back({.weight = floats_of(*decision->input(0)).to_floats(),
                          .options = quantize_options(*decision),
                          .input = input_of(*linear)});
    }
    return choose_channel_scales(group, products, facts,
                                 family == "awq" ? ScaleFamily::Awq : ScaleFamily::Smooth);
  }

  void apply(const ChannelGroup& group, const std::vector<float>& scales, const ChannelFacts& facts) {
    std::vector<float> columns, inverse;
    for (const int64_t source : group.source_channel) columns.push_back(scales[static_cast<size_t>(source)]);
    for (const float scale : scales) inverse.push_back(1 / scale);
    Rewriter rewriter(graph_);
    for (Node* linear : group.consumers) {
      multiply_weight(rewriter, *linear, {1, static_cast<int64_t>(columns.size())}, columns);
      // What a table knows of the input's range is no longer so.
      if (linear->has_attribute(kStaticActivations))
        rewriter.set_attribute(linear, kScaledAttribute, int64_t{1});
      if (linear->input(1)->producer()->string_attribute(kCalibrateAttribute, "") == "importance")
        weigh(rewriter, linear->input(1)->producer(), columns, facts);
    }
    if (group.kind == ChannelGroup::Source::Norm) {
      const bool skips = group.source->op().starts_with("Skip");
      const bool biased = group.source->op().ends_with("LayerNormalization") &&
                          group.source->op().find("Simplified") == std::string::npos;
      multiply_vector(rewriter, group.source, skips ? 2 : 1, inverse);
      if (biased) multiply_vector(rewriter, group.source, skips ? 3 : 2, inverse);
    } else {
      multiply_weight(rewriter, *group.source, {static_cast<int64_t>(inverse.size()), 1}, inverse);
      multiply_vector(rewriter, group.source, 2, inverse);
    }
    rewriter.commit();
    ++report_.changes;
  }

  static void multiply_weight(Rewriter& rewriter, const Node& linear, Shape shape,
                              const std::vector<float>& by) {
    Node* decision = linear.input(1)->producer();
    Value* factor = rewriter.add_constant(Tensor::from<float>(std::move(shape), by));
    rewriter.set_input(decision, 0,
                       rewriter.add_node({.op = "Mul", .inputs = {decision->input(0), factor}})->output());
  }

  // Least squares of the scaled columns, by the squares of the scaled inputs.
  static void weigh(Rewriter& rewriter, Node* decision, const std::vector<float>& scales,
                    const ChannelFacts& facts) {
    std::vector<double> squares;
    for (size_t i = 0; i < scales.size(); ++i)
      squares.push_back(static_cast<double>(facts.mean_square[i]) /
                        std::pow(static_cast<double>(scales[i]), 2));
    rewriter.remove_attribute(decision, kCalibrateAttribute);
    rewriter.set_input(decision, 1, rewriter.add_constant(importance_of(squares)));
  }

  static void multiply_vector(Rewriter& rewriter, Node* node, size_t input, const std::vector<float>& by) {
    const Value* value = node->input(input);
    if (value == nullptr) return;
    const Tensor& tensor = *value->tensor();
    std::vector<float> values = tensor.to_floats();
    for (size_t i = 0; i < values.size(); ++i) values[i] *= by[i];
    const Tensor scaled = Tensor::from<float>(tensor.shape(), values);
    rewriter.set_input(
        node, input,
        rewriter.add_constant(tensor.dtype() == DType::F32 ? scaled : scaled.cast(tensor.dtype()),
                              value->name()));
  }

  void remove_marks() {
    Rewriter rewriter(graph_);
    for (Node* node : graph_.nodes()) {
      if (!node->is("QuantizeWeight", kQuernDomain) || !node->has_attribute(kBalanceAttribute)) continue;
      rewriter.remove_attribute(node, kBalanceAttribute);
      ++report_.changes;
    }
    rewriter.commit();
  }

  void summarize() {
    double strength = 0, ratio = 0;
    int64_t scaled = 0;
    for (const ChannelChoice& choice : choices_) {
      if (choice.scales.empty()) continue;
      ++scaled;
      strength += choice.strength;
      ratio += std::log(choice.after / choice.before);
    }
    if (choices_.empty()) return;
    const auto count = static_cast<double>(std::max<int64_t>(1, scaled));
    report_.notes.push_back(scaled == 0
                                ? concat("no scales help any of ", choices_.size(), " inputs")
                                : concat("scaled channels of ", scaled, " of ", choices_.size(),
                                         " inputs, strength ", std::round(100 * strength / count) / 100,
                                         " on average; squared errors of outputs fall to ",
                                         std::round(1000 * std::exp(ratio / count)) / 10, "%"));
  }

  Graph& graph_;
  PassContext& context_;
  int64_t rows_;
  std::vector<ChannelChoice> choices_;
  PassReport report_;
};

}  // namespace

BalanceChannels::BalanceChannels()
    : Pass("balance-channels",
           "scale channels so that weights and activations round well, and fold the scales") {
  option("rows", &rows_, "Rows of each activation that errors are measured on.");
}

PassReport BalanceChannels::run(Graph& graph, PassContext& context) {
  const auto& nodes = graph.nodes();
  if (std::none_of(nodes.begin(), nodes.end(), [](const Node* node) {
        return node->is("QuantizeWeight", kQuernDomain) && node->has_attribute(kBalanceAttribute);
      }))
    return {};
  if (context.samples == nullptr && context.table == nullptr) {
    throw_error(ErrorCode::InvalidArgument, kBalanceNeedsData);
  }
  if (rows_ < 1) throw_error(ErrorCode::InvalidArgument, "balance-channels wants rows of 1 or more");
  return Balancer(graph, context, rows_).run();
}

}  // namespace quern::passes
