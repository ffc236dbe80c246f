#include "calibrate/text_rows.h"

#include <algorithm>

#include "calibrate/graph_model.h"
#include "ir/error.h"
#include "runtime/graph_part.h"
#include "runtime/layers/encoder_exit.h"

namespace quern::calibrate {
namespace {

class Collector {
 public:
  Collector(const Graph& graph, const std::vector<std::string>& outputs)
      : graph_(graph),
        names_(outputs),
        inputs_(graph),
        batches_(inputs_.takes_batches()),
        part_(graph, given(graph), wanted(graph, outputs)),
        rows_(outputs.size()) {}

  // Returns how many were computed.
  size_t compute(const Texts& texts, size_t first) {
    const size_t count = batches_ ? batch_at(texts, first) : 1;
    const std::span<const std::span<const int64_t>> some = std::span(texts).subspan(first, count);
    if (count == 1) {
      run(some);
      return 1;
    }
    try {
      run(some);
    } catch (const Error& error) {
      // Exporters fix a batch of one in Reshapes; the graph still runs for that.
      if (error.code() == ErrorCode::OutOfMemory || error.code() == ErrorCode::Internal) throw;
      batches_ = false;
      return compute(texts, first);
    }
    return count;
  }
  std::vector<TextRows> take() { return std::move(rows_); }

 private:
  static std::vector<const Value*> given(const Graph& graph) {
    return {graph.inputs().begin(), graph.inputs().end()};
  }
  static std::vector<const Value*> wanted(const Graph& graph, const std::vector<std::string>& outputs) {
    std::vector<const Value*> values;
    for (const std::string& name : outputs) {
      const auto found = std::find_if(graph.outputs().begin(), graph.outputs().end(),
                                      [&](const GraphOutput& output) { return output.name == name; });
      if (found == graph.outputs().end())
        throw_error(ErrorCode::InvalidArgument, "graph '", graph.name(), "' has no output '", name, "'");
      values.push_back(found->value);
    }
    return values;
  }

  void run(std::span<const std::span<const int64_t>> texts) {
    const auto made = part_.run(runtime::bind_inputs(graph_, inputs_.fill(texts)));
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < made.size(); ++i) {
      const Tensor tensor = made[i].dense();
      if (tensor.rank() != 2 || tensor.dim(0) != static_cast<int64_t>(texts.size())) {
        throw_error(ErrorCode::Unsupported, "'", names_[i], "' has the shape ", to_string(tensor.shape()),
                    " for ", texts.size(), " texts; one row for each was expected");
      }
      tensors.push_back(tensor);
    }
    for (size_t i = 0; i < made.size(); ++i) {
      const std::vector<float> values = tensors[i].to_floats();
      rows_[i].width = tensors[i].dim(1);
      rows_[i].values.insert(rows_[i].values.end(), values.begin(), values.end());
    }
  }

  const Graph& graph_;
  const std::vector<std::string>& names_;
  TokenInputs inputs_;
  bool batches_;
  runtime::GraphPart part_;
  std::vector<TextRows> rows_;
};

}  // namespace

size_t batch_at(const Texts& texts, size_t first) {
  constexpr size_t kMost = 32;
  constexpr size_t kMostTokens = 4096;
  const size_t length = texts[first].size();
  const size_t most = std::min(kMost, kMostTokens / std::max<size_t>(1, length));
  size_t count = 1;
  while (count < most && first + count < texts.size() && texts[first + count].size() == length) ++count;
  return count;
}

std::vector<TextRows> rows_of_texts(const Graph& graph, const Texts& texts,
                                    const std::vector<std::string>& outputs,
                                    const std::function<void(int64_t done)>& progress) {
  Collector collector(graph, outputs);
  for (size_t done = 0; done < texts.size();) {
    done += collector.compute(texts, done);
    if (progress) progress(static_cast<int64_t>(done));
  }
  return collector.take();
}

}  // namespace quern::calibrate
