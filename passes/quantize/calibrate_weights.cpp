#include "passes/quantize/calibrate_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "calibrate/activation_runner.h"
#include "calibrate/samples.h"
#include "calibrate/second_moments.h"
#include "calibrate/table.h"
#include "ir/products.h"
#include "ir/rewriter.h"
#include "ir/weight_ops.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/quantize/importance.h"
#include "passes/quantize/layer_error.h"
#include "passes/quantize/needs_data.h"
#include "passes/weights/constant_expressions.h"
#include "passes/weights/materialize.h"

namespace quern::passes {
namespace {

using calibrate::ActivationRows;
using calibrate::ActivationRunner;
using calibrate::SquareMatrix;

// A weight to calibrate. `constant` is its value in the working graph: floats, later codes.
struct Site {
  std::string expression;  // the name of the QuantizeWeight's output, in the graph
  std::string name;        // of the weight
  std::string method;
  QuantizeOptions options;
  Value* constant = nullptr;
  std::vector<std::string> taps;  // inputs of the products that use it
  int64_t level = 0;              // products before it, on the longest path
  bool is_table = false;
  int64_t groups = 0;  // of a convolution; 0: of none

  bool clips() const { return method == "clip-error"; }
  bool is_by_outputs() const { return method == "layer-error" || clips(); }
};

const char* missing_data(const Graph& graph) {
  const auto& nodes = graph.nodes();
  const bool clips = std::any_of(nodes.begin(), nodes.end(), [](const Node* node) {
    return node->string_attribute(kCalibrateAttribute, "") == "clip-error";
  });
  return clips ? kClipErrorNeedsData : kGptqNeedsData;
}

struct Settings {
  LayerErrorOptions layer;
  double propagate = 0;
  int64_t stages = 0;
  int64_t moment_bytes = 0;
};

// The decoder with floats for the weights that are to be calibrated, all constants computed.
class WorkingModel {
 public:
  WorkingModel(const Graph& graph, PassContext& context) : graph_(graph.clone()) {
    for (const Node* node : graph.nodes()) {
      if (!node->is("QuantizeWeight", kQuernDomain) || !node->has_attribute(kCalibrateAttribute)) continue;
      Site site{.expression = node->output()->name(),
                .name = weight_name(*node->output()),
                .method = node->string_attribute(kCalibrateAttribute, ""),
                .options = quantize_options(*node)};
      Constant floats = materialize(*node->input(0));
      // What the file held quantized is quantized anew.
      if (const auto* quantized = std::get_if<QuantizedTensor>(&floats)) floats = dequantize(*quantized);
      if (const auto* packed = std::get_if<PackedTensor>(&floats)) floats = packed->dequantize();
      const Tensor* tensor = std::get_if<Tensor>(&floats);
      if (tensor == nullptr || tensor->rank() != 2 || !is_floating(tensor->dtype()))
        throw_error(ErrorCode::Internal, "the weight '", site.name, "' is no matrix of floats");
      Rewriter rewriter(*graph_);
      site.constant =
          rewriter.add_constant(tensor->dtype() == DType::F32 ? *tensor : tensor->cast(DType::F32));
      rewriter.replace(graph_->find_value(site.expression), site.constant);
      rewriter.commit();
      sites_.push_back(std::move(site));
    }
    MaterializeWeights().run(*graph_, context);
    find_uses();
  }

  std::vector<Site>& sites() { return sites_; }
  const Graph& graph() const { return *graph_; }
  std::unique_ptr<Graph> copy() const { return graph_->clone(); }

  void set(const Site& site, QuantizedTensor weight) {
    Rewriter rewriter(*graph_);
    rewriter.set_constant(site.constant, std::move(weight));
    rewriter.commit();
  }

  int64_t parameters() const {
    int64_t count = 0;
    for (const Site& site : sites_) count += element_count(*as_constant(site.constant->shape()));
    return count;
  }

 private:
  void find_uses() {
    std::map<const Value*, Site*> site_of;
    for (Site& site : sites_) site_of[site.constant] = &site;
    std::map<const Value*, int64_t> levels;
    for (const Node* node : graph_->nodes()) {
      int64_t level = 0;
      for (const Value* input : node->inputs()) {
        const auto found = levels.find(input);
        if (found != levels.end()) level = std::max(level, found->second);
      }
      const bool linear = is_product(*node);
      const auto site = site_of.find(node->input(linear ? 1 : 0));
      if (site != site_of.end()) {
        if (linear) {
          ++level;
          site->second->taps.push_back(node->input(0)->name());
          if (is_convolution(*node)) site->second->groups = node->int_attribute("group", 1);
          site->second->level = std::max(site->second->level, level);
        } else {
          site->second->is_table = true;
        }
      }
      for (const Value* output : node->outputs()) {
        if (output != nullptr) levels[output] = level;
      }
    }
  }

  std::unique_ptr<Graph> graph_;
  std::vector<Site> sites_;
};

// A number of sites whose moments are collected together.
using Stage = std::vector<Site*>;

int64_t moment_bytes(const Site& site, bool propagates) {
  const int64_t cols = as_constant(site.constant->shape())->at(1);
  return SquareMatrix::bytes(cols) * (propagates ? 2 : 1);
}

// Consecutive levels joined to at most so many stages, then cut where moments would take too much.
std::vector<Stage> plan_stages(std::vector<Site>& sites, const Settings& settings, int64_t most) {
  std::map<int64_t, Stage> levels;
  for (Site& site : sites) {
    if (!site.is_by_outputs()) continue;
    // Tables are read before anything else, so whatever they lose is made up for behind them.
    levels[site.is_table ? 0 : site.level].push_back(&site);
  }
  std::vector<Stage> stages;
  const auto count = static_cast<int64_t>(levels.size());
  const int64_t wanted = std::clamp<int64_t>(most, 1, std::max<int64_t>(1, count));
  int64_t index = 0;
  int64_t last = -1;
  for (auto& [level, stage] : levels) {
    const int64_t number = index++ * wanted / std::max<int64_t>(1, count);
    if (number != last) stages.emplace_back();
    last = number;
    int64_t bytes = 0;
    for (const Site* site : stages.back()) bytes += moment_bytes(*site, settings.propagate > 0);
    for (Site* site : stage) {
      const int64_t own = moment_bytes(*site, settings.propagate > 0);
      if (!stages.back().empty() && bytes + own > settings.moment_bytes) {
        stages.emplace_back();
        bytes = 0;
      }
      bytes += own;
      stages.back().push_back(site);
    }
  }
  return stages;
}

std::vector<std::string> taps_of(const Stage& stage) {
  std::set<std::string> taps;
  for (const Site* site : stage) taps.insert(site->taps.begin(), site->taps.end());
  return {taps.begin(), taps.end()};
}

struct Moments {
  SquareMatrix own;    // of the inputs as the partly quantized model has them
  SquareMatrix cross;  // of the original's with those; empty where they are the same
};

class WeightCalibrator {
 public:
  WeightCalibrator(Graph& graph, PassContext& context, const Settings& settings)
      : graph_(graph), context_(context), settings_(settings), model_(graph, context) {
    if (context.samples == nullptr) return;
    runner_ = calibrate::runner_options(samples(), context.threads);
  }

  PassReport run() {
    find_importance();
    minimize_errors();
    return std::move(report_);
  }

 private:
  const calibrate::Samples& samples() const {
    if (context_.samples == nullptr) {
      throw_error(ErrorCode::InvalidArgument, missing_data(graph_));
    }
    return *context_.samples;
  }

  void find_importance() {
    Stage stage;
    for (Site& site : model_.sites()) {
      if (site.method == "importance") stage.push_back(&site);
    }
    const std::vector<std::string> taps = taps_of(stage);
    std::vector<std::vector<double>> sums(taps.size());
    if (context_.table != nullptr) {
      for (size_t i = 0; i < taps.size(); ++i) sums[i] = observed_squares(taps[i]);
    } else if (!taps.empty()) {
      ActivationRunner runner(model_.graph(), taps, runner_);
      for (int64_t i = 0; i < samples().count(); ++i) {
        context_.report_progress("importance of inputs", share(i));
        runner.run(samples(), i, [&](const ActivationRows& rows) { add_squares(rows, sums[rows.tap]); });
      }
    }
    for (const Site* site : stage) {
      std::vector<double> total;
      for (const std::string& tap : site->taps) {
        const auto index = static_cast<size_t>(std::find(taps.begin(), taps.end(), tap) - taps.begin());
        const std::vector<double> own = by_column(*site, sums[index]);
        total.resize(own.size());
        for (size_t i = 0; i < total.size(); ++i) total[i] += own[i];
      }
      set_importance(*site, total);
      ++report_.changes;
    }
  }

  // What was seen of the channels of an input, for the columns of the weight: those of a convolution are its
  // channels over and over, once for each tap, and serve all groups.
  static std::vector<double> by_column(const Site& site, const std::vector<double>& channels) {
    if (site.groups == 0 || channels.empty()) return channels;
    const auto columns = static_cast<size_t>(as_constant(site.constant->shape())->at(1));
    const size_t of_group = channels.size() / static_cast<size_t>(site.groups);
    std::vector<double> means(of_group, 0);
    for (size_t i = 0; i < channels.size(); ++i)
      means[i % of_group] += channels[i] / static_cast<double>(site.groups);
    std::vector<double> out(columns);
    for (size_t i = 0; i < columns; ++i) out[i] = means[i % of_group];
    return out;
  }

  // Empty where no sample reached the tensor: its weights are quantized as if all inputs were alike.
  std::vector<double> observed_squares(const std::string& tap) {
    const auto found = context_.table->tensors.find(tap);
    if (found == context_.table->tensors.end()) {
      throw_error(ErrorCode::InvalidArgument, "the calibration table has nothing about '", tap,
                  "'; it was made of another model or by another version");
    }
    if (found->second.rows() == 0) {
      report_.notes.push_back(concat("no sample reached '", tap, "': weights behind it are not calibrated"));
    }
    return found->second.channel_mean_square();
  }

  static void add_squares(const ActivationRows& rows, std::vector<double>& sums) {
    sums.resize(static_cast<size_t>(rows.width));
    for (int64_t r = 0; r < rows.rows; ++r) {
      const std::span<const float> row = rows.row(r);
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    }
  }

  // Without products (a table alone) all inputs weigh the same: the attribute just goes.
  void set_importance(const Site& site, const std::vector<double>& sums) {
    Node* node = graph_.find_value(site.expression)->producer();
    Rewriter rewriter(graph_);
    rewriter.remove_attribute(node, kCalibrateAttribute);
    if (!sums.empty()) {
      Node* weighted =
          rewriter.add_node({.op = "QuantizeWeight",
                             .domain = std::string(kQuernDomain),
                             .name = node->name(),
                             .inputs = {node->input(0), rewriter.add_constant(importance_of(sums))},
                             .attributes = without_mark(node->attributes())});
      rewriter.replace(node->output(), weighted->output());
    }
    rewriter.commit();
  }

  static Attributes without_mark(Attributes attributes) {
    attributes.erase(kCalibrateAttribute);
    return attributes;
  }

  // Each stage runs the model once more up to its own products. Large models get fewer stages, so that the
  // whole stays within some minutes.
  int64_t most_stages() const {
    if (settings_.stages > 0) return settings_.stages;
    constexpr double kMultiplyAdds = 1.5e12;
    const double pass = static_cast<double>(samples().tokens()) * static_cast<double>(model_.parameters());
    return static_cast<int64_t>(std::clamp(kMultiplyAdds / std::max(1.0, pass), 1.0, 1e6));
  }

  void minimize_errors() {
    const std::vector<Site>& sites = model_.sites();
    if (std::none_of(sites.begin(), sites.end(), [](const Site& s) { return s.is_by_outputs(); })) return;
    std::vector<Stage> stages = plan_stages(model_.sites(), settings_, most_stages());
    std::unique_ptr<Graph> original;
    if (settings_.propagate > 0 && stages.size() > 1) original = model_.copy();
    std::vector<std::pair<const Site*, QuantizedTensor>> done;
    for (size_t i = 0; i < stages.size(); ++i) {
      progress_ = {static_cast<double>(i) / static_cast<double>(stages.size()),
                   1.0 / static_cast<double>(stages.size())};
      const std::map<std::string, Moments> moments =
          collect(taps_of(stages[i]), i == 0 ? nullptr : original.get());
      // The inputs of a stage are those before any of it is quantized.
      std::vector<std::pair<Site*, QuantizedTensor>> found;
      for (Site* site : stages[i]) found.emplace_back(site, solve(*site, moments));
      for (auto& [site, weight] : found) {
        model_.set(*site, weight);
        done.emplace_back(site, std::move(weight));
      }
    }
    for (auto& [site, weight] : done) {
      replace_by_constant(graph_, graph_.find_value(site->expression), std::move(weight), site->name);
      ++report_.changes;
    }
  }

  std::map<std::string, Moments> collect(const std::vector<std::string>& taps, const Graph* original) {
    std::map<std::string, Moments> moments;
    if (taps.empty()) return moments;
    ActivationRunner runner(model_.graph(), taps, runner_);
    std::unique_ptr<ActivationRunner> reference;
    if (original != nullptr) reference = std::make_unique<ActivationRunner>(*original, taps, runner_);
    for (int64_t i = 0; i < samples().count(); ++i) {
      context_.report_progress("moments of '" + taps.front() + "'", share(i));
      std::vector<std::vector<float>> before(taps.size());
      if (reference) {
        reference->run(samples(), i,
                       [&](const ActivationRows& rows) { before[rows.tap] = calibrate::copy_rows(rows); });
      }
      runner.run(samples(), i, [&](const ActivationRows& rows) {
        Moments& sums = moments[taps[rows.tap]];
        if (sums.own.size == 0) {
          sums.own = SquareMatrix(rows.width);
          if (reference) sums.cross = SquareMatrix(rows.width);
        }
        const std::vector<float> now = calibrate::copy_rows(rows);
        summer_.add(now, now, rows.rows, sums.own);
        if (reference) summer_.add(before[rows.tap], now, rows.rows, sums.cross);
      });
    }
    return moments;
  }

  QuantizedTensor solve(const Site& site, const std::map<std::string, Moments>& moments) {
    context_.report_progress("quantizing '" + site.name + "'", progress_.first + progress_.second);
    const Tensor& weight = *site.constant->tensor();
    const std::span<const float> values = weight.data<float>();
    const int64_t cols = weight.dim(1);
    Moments sum{SquareMatrix(cols), SquareMatrix(0)};
    bool crossed = !site.taps.empty() && !site.clips();
    for (const std::string& tap : site.taps) {
      const Moments& each = moments.at(tap);
      for (size_t i = 0; i < sum.own.elements.size(); ++i) sum.own.elements[i] += each.own.elements[i];
      crossed = crossed && each.cross.size == cols;
    }
    std::vector<float> target;
    if (crossed) {
      sum.cross = SquareMatrix(cols);
      for (const std::string& tap : site.taps) {
        const SquareMatrix& cross = moments.at(tap).cross;
        for (size_t i = 0; i < cross.elements.size(); ++i) sum.cross.elements[i] += cross.elements[i];
      }
      target =
          propagated_target(values, cols, sum.cross, sum.own, settings_.layer.damping, settings_.propagate);
    }
    if (site.is_table) add_lookups(sum.own);
    LayerErrorOptions layer = settings_.layer;
    layer.clips_alone = site.clips();
    return with_context("calibrating '" + site.name + "'", [&] {
      LayerErrorResult result = minimize_layer_error(values, cols, sum.own, site.options, layer, target);
      note(site, result);
      return std::move(result.weight);
    });
  }

  // A row that is looked up is an input itself: each of its errors counts the same, as much as those that the
  // head sees.
  static void add_lookups(SquareMatrix& moments) {
    double mean = 0;
    for (int64_t i = 0; i < moments.size; ++i) mean += moments.at(i, i) / static_cast<double>(moments.size);
    for (int64_t i = 0; i < moments.size; ++i) moments.at(i, i) += mean > 0 ? mean : 1.0;
  }

  void note(const Site& site, const LayerErrorResult& result) {
    const auto decibels = [](double share) { return share > 0 ? -10 * std::log10(share) : INFINITY; };
    report_.notes.push_back(concat("'", site.name, "': SQNR of the outputs ", decibels(result.after),
                                   " dB; rounded to nearest ", decibels(result.before), " dB"));
    if (result.silent_inputs > 0 && !site.taps.empty()) {
      report_.notes.push_back(concat("'", site.name, "': ", result.silent_inputs,
                                     " inputs were 0 in all samples; their weights are rounded to nearest"));
    }
  }

  double share(int64_t windows_done) const {
    return progress_.first +
           progress_.second * static_cast<double>(windows_done) / static_cast<double>(samples().count());
  }

  Graph& graph_;
  PassContext& context_;
  Settings settings_;
  WorkingModel model_;
  calibrate::RunnerOptions runner_;
  calibrate::MomentSummer summer_;
  PassReport report_;
  std::pair<double, double> progress_ = {0, 1};
};

bool has_work(const Graph& graph) {
  const auto& nodes = graph.nodes();
  return std::any_of(nodes.begin(), nodes.end(), [](const Node* node) {
    return node->is("QuantizeWeight", kQuernDomain) && node->has_attribute(kCalibrateAttribute);
  });
}

}  // namespace

CalibrateWeights::CalibrateWeights()
    : Pass("calibrate-weights", "quantize weights by what the model computes on samples") {
  option("damping", &damping_, "gptq: added to the diagonal of the second moments, as a share of its mean.");
  option("propagate", &propagate_,
         "gptq: how far a weight makes up for the quantization of what is before it, 0 to 1.");
  option("sweeps", &sweeps_, "gptq: rounds of coordinate descent behind it.");
  option(
      "stages", &stages_,
      "gptq: how often at most the model is run to see its activations, partly quantized; 0: as often as it "
      "has products one after another, less for large models.");
  option("moment-memory", &moment_memory_, "MB that the second moments of a stage may take.");
  option("data", &data_, "SHA-256 of the data that samples were drawn from, for the record.");
  option("samples", &samples_, "Windows that were drawn, for the record.");
  option("context", &context_, "Tokens of a window, for the record.");
  option("seed", &seed_, "Of the draw, for the record.");
}

PassReport CalibrateWeights::run(Graph& graph, PassContext& context) {
  if (!has_work(graph)) return {};
  if (context.samples == nullptr && context.table == nullptr) {
    throw_error(ErrorCode::InvalidArgument, missing_data(graph));
  }
  if (!data_.empty() && context.samples != nullptr && data_ != context.samples->digest) {
    throw_error(ErrorCode::InvalidArgument, "the recipe was made with calibration data of SHA-256 ", data_,
                ", '", context.samples->source, "' has ", context.samples->digest);
  }
  if (damping_ < 0 || propagate_ < 0 || propagate_ > 1 || sweeps_ < 0 || stages_ < 0 || moment_memory_ < 1) {
    throw_error(ErrorCode::InvalidArgument,
                "calibrate-weights wants damping, sweeps and stages of 0 or more, propagate from 0 to 1, and "
                "moment-memory of 1 MB or more");
  }
  const Settings settings{.layer = {.damping = damping_, .sweeps = static_cast<int>(sweeps_)},
                          .propagate = propagate_,
                          .stages = stages_,
                          .moment_bytes = moment_memory_ * 1'000'000};
  return WeightCalibrator(graph, context, settings).run();
}

}  // namespace quern::passes
