#include "passes/quantize/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "calibrate/activation_runner.h"
#include "calibrate/samples.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/weights/materialize.h"

namespace quern::passes {
namespace {

using calibrate::ActivationRows;

std::vector<Node*> attentions_of(const Graph& graph) {
  std::vector<Node*> nodes;
  for (Node* node : graph.nodes()) {
    if (node->is("CachedAttention", kQuernDomain)) nodes.push_back(node);
  }
  return nodes;
}

int64_t rows_of_embedding(const Graph& graph) {
  for (const Node* node : graph.nodes()) {
    if (!node->is("Embedding", kQuernDomain) || node->input(1)->name() != "input_ids") continue;
    if (const auto shape = as_constant(node->input(0)->shape())) return shape->front();
  }
  throw_error(ErrorCode::InvalidModel,
              "no embedding of input_ids is there, whose rows would say how many tokens are known");
}

// Tokens at random, where there is no text: the same ones for the same model.
std::vector<std::vector<int64_t>> random_windows(const Graph& graph) {
  constexpr size_t kWindows = 4;
  int64_t length = 64;
  const auto context = graph.metadata().find("context_length");
  if (context != graph.metadata().end())
    length = std::clamp<int64_t>(std::atoll(context->second.c_str()), 1, length);
  const auto vocabulary = static_cast<uint64_t>(rows_of_embedding(graph));
  std::mt19937_64 random(0);
  std::vector<std::vector<int64_t>> windows(kWindows, std::vector<int64_t>(static_cast<size_t>(length)));
  for (auto& window : windows) {
    for (int64_t& id : window) id = static_cast<int64_t>(random() % vocabulary);
  }
  return windows;
}

// The root mean square of each channel, of mean 1; one that is hardly used still has a scale.
Tensor channel_scales(const std::vector<double>& sums) {
  double mean = 0;
  for (const double sum : sums) mean += std::sqrt(sum) / static_cast<double>(sums.size());
  constexpr double kLeast = 1.0 / 64;
  Tensor scales = Tensor::zeros(DType::F32, {static_cast<int64_t>(sums.size())});
  for (size_t i = 0; i < sums.size(); ++i)
    scales.set(static_cast<int64_t>(i), mean > 0 ? std::max(std::sqrt(sums[i]) / mean, kLeast) : 1.0);
  return scales;
}

}  // namespace

const std::vector<std::string>& KvCachePass::choices() {
  static const std::vector<std::string> choices = {"fp32", "fp16", "int8", "int4"};
  return choices;
}

DType KvCachePass::dtype_of(const std::string& choice) {
  if (choice == "fp32") return DType::F32;
  if (choice == "fp16") return DType::F16;
  if (choice == "int8") return DType::I8;
  if (choice == "int4") return DType::I4;
  throw_error(ErrorCode::InvalidArgument, "keys and values as '", choice,
              "'; fp32, fp16, int8 and int4 are known");
}

KvCachePass::KvCachePass() : Pass("kv-cache", "choose how keys and values are kept while decoding") {
  option("kv", &kv_, "What keys and values are kept as.", choices());
}

PassReport KvCachePass::run(Graph& graph, PassContext& context) {
  PassReport report;
  if (!is_decoder(graph)) {
    throw_error(ErrorCode::InvalidArgument,
                "keys and values are kept by decoders, and this graph is none that quern recognises");
  }
  const DType dtype = dtype_of(kv_);
  Rewriter rewriter(graph);
  const std::string name(to_string(dtype));
  const auto before = graph.metadata().find("cache");
  if (before == graph.metadata().end() ? dtype != DType::F32 : before->second != name) {
    rewriter.set_metadata("cache", name);
    ++report.changes;
  }
  std::vector<Node*> nodes = attentions_of(graph);
  std::erase_if(nodes, [](const Node* node) { return node->input(5) != nullptr; });
  const bool integers = dtype == DType::I8 || dtype == DType::I4;
  if (integers && !nodes.empty()) {
    std::vector<std::string> taps;
    for (const Node* node : nodes) taps.push_back(node->input(1)->name());
    std::vector<std::vector<double>> sums(taps.size());
    const std::unique_ptr<Graph> model = graph.clone();
    MaterializeWeights().run(*model, context);
    const auto windows = context.samples != nullptr ? context.samples->windows : random_windows(*model);
    calibrate::RunnerOptions options{.threads = context.threads};
    for (const auto& window : windows)
      options.longest_window = std::max(options.longest_window, static_cast<int64_t>(window.size()));
    calibrate::ActivationRunner runner(*model, taps, options);
    for (size_t i = 0; i < windows.size(); ++i) {
      context.report_progress("keys", static_cast<double>(i) / static_cast<double>(windows.size()));
      runner.run(windows[i], [&](const ActivationRows& rows) {
        std::vector<double>& sum = sums[rows.tap];
        sum.resize(static_cast<size_t>(rows.width));
        for (int64_t r = 0; r < rows.rows; ++r) {
          for (size_t c = 0; c < sum.size(); ++c) sum[c] += std::pow(static_cast<double>(rows.row(r)[c]), 2);
        }
      });
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      rewriter.set_input(nodes[i], 5, rewriter.add_constant(channel_scales(sums[i])));
      ++report.changes;
    }
  }
  rewriter.commit();
  return report;
}

}  // namespace quern::passes
