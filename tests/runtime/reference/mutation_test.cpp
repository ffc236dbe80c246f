// The backend suite's cases with one thing made wrong each: another element type, rank or length of an input,
// extreme values, a missing input, a senseless attribute. Whatever comes of it is a result or an Error that
// does not call itself a bug; nothing crashes, hangs or takes memory that the file does not hold.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "ir/rewriter.h"
#include "ir/shape_inference.h"
#include "tests/runtime/reference/backend_cases.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

using runtime::NamedValues;

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t below(size_t count) { return static_cast<size_t>(random_() % count); }

  // Nothing stands for an input that is left out.
  std::optional<Tensor> changed(const Tensor& tensor, std::string& what) {
    switch (below(7)) {
      case 0:
        what = "of another element type";
        return of_other_type(tensor);
      case 1:
        what = "as a scalar";
        return Tensor::zeros(tensor.dtype(), {});
      case 2: {
        what = "with one more dimension";
        Shape shape = tensor.shape();
        shape.insert(shape.begin() + static_cast<int64_t>(below(shape.size() + 1)), 1);
        return tensor.reshaped(shape);
      }
      case 3:
        what = "flat";
        return tensor.reshaped({tensor.size()});
      case 4:
        what = "resized";
        return resized(tensor);
      case 5:
        what = "left out";
        return std::nullopt;
      default:
        what = "with an extreme value";
        return with_extreme(tensor);
    }
  }

  Attribute changed(const Attribute& attribute) {
    if (std::holds_alternative<int64_t>(attribute)) return extreme();
    if (std::holds_alternative<float>(attribute)) return std::numeric_limits<float>::quiet_NaN();
    if (std::holds_alternative<std::string>(attribute)) return std::string("nonsense");
    const auto* ints = std::get_if<std::vector<int64_t>>(&attribute);
    if (ints == nullptr) return int64_t{1};  // of the wrong type
    std::vector<int64_t> list = *ints;
    if (list.empty() || below(3) == 0) {
      list.push_back(1);
    } else if (below(2) == 0) {
      list.pop_back();
    } else {
      list[below(list.size())] = extreme();
    }
    return list;
  }

 private:
  int64_t extreme() {
    constexpr int64_t kChoice[] = {-1,
                                   0,
                                   7,
                                   int64_t{1} << 31,
                                   int64_t{1} << 40,
                                   std::numeric_limits<int64_t>::max(),
                                   std::numeric_limits<int64_t>::min()};
    return kChoice[below(std::size(kChoice))];
  }

  Tensor of_other_type(const Tensor& tensor) {
    constexpr DType kChoice[] = {DType::F32, DType::F64, DType::F16,  DType::I64,   DType::I32,
                                 DType::U8,  DType::I4,  DType::Bool, DType::F8E4M3};
    if (tensor.dtype() == DType::String) return Tensor::zeros(kChoice[below(9)], tensor.shape());
    if (below(8) == 0) {
      return Tensor::from_strings(tensor.shape(),
                                  std::vector<std::string>(static_cast<size_t>(tensor.size()), "text"));
    }
    return tensor.cast(kChoice[below(std::size(kChoice))]);
  }

  Tensor resized(const Tensor& tensor) {
    if (tensor.rank() == 0) return Tensor::zeros(tensor.dtype(), {3});
    Shape shape = tensor.shape();
    int64_t& dim = shape[below(shape.size())];
    dim = below(3) == 0 ? 0 : below(2) == 0 ? dim + 1 : std::max<int64_t>(0, dim - 1);
    return Tensor::zeros(tensor.dtype(), shape);
  }

  Tensor with_extreme(const Tensor& tensor) {
    if (tensor.size() == 0 || tensor.dtype() == DType::String) return tensor;
    Tensor out = tensor;
    const auto at = static_cast<int64_t>(below(static_cast<size_t>(tensor.size())));
    if (is_floating(tensor.dtype())) {
      constexpr double kChoice[] = {NAN, INFINITY, -INFINITY, 1e38, -1.0, 0.0};
      out.set(at, kChoice[below(std::size(kChoice))]);
    } else {
      out.set_int(at, extreme());
    }
    return out;
  }

  std::mt19937_64 random_;
};

// The graph with its inputs as constants, one of them or an attribute changed; nothing is known of the types.
std::unique_ptr<Graph> mutated(const LoadedCase& loaded, Mutator& mutator, std::string& what) {
  std::unique_ptr<Graph> graph = loaded.graph->clone();
  Rewriter rewriter(*graph);
  for (Value* value : graph->values()) {
    if (!value->is_constant()) rewriter.set_type(value, {});
  }
  const std::vector<Node*> nodes = graph->nodes();
  const Node* node = nodes.empty() ? nullptr : nodes[mutator.below(nodes.size())];
  const std::vector<Value*> inputs = graph->inputs();
  const bool change_attribute =
      inputs.empty() || (node != nullptr && !node->attributes().empty() && mutator.below(3) == 0);
  const size_t victim = inputs.empty() ? 0 : mutator.below(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto given = loaded.data_sets.front().inputs.find(inputs[i]->name());
    if (given == loaded.data_sets.front().inputs.end() || given->second.tensor() == nullptr) continue;
    std::optional<Tensor> data = *given->second.tensor();
    if (!change_attribute && i == victim) {
      data = mutator.changed(*data, what);
      what = concat("input '", inputs[i]->name(), "' ", what);
    }
    Value* constant = data ? rewriter.add_constant(*data, inputs[i]->name() + ".value") : nullptr;
    for (const Use& use : std::vector<Use>(inputs[i]->uses())) {
      rewriter.set_input(use.node, static_cast<size_t>(use.input), constant);
    }
  }
  if (change_attribute && node != nullptr && !node->attributes().empty()) {
    auto entry = node->attributes().begin();
    std::advance(entry, static_cast<int64_t>(mutator.below(node->attributes().size())));
    what = concat("attribute '", entry->first, "' of ", describe(*node));
    rewriter.set_attribute(const_cast<Node*>(node), entry->first, mutator.changed(entry->second));
  }
  rewriter.commit();
  return graph;
}

// Whether `body` ends, or in an Error that is not Internal; else says what came.
template <class Body>
std::string outcome(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Internal) return error.what();
  } catch (const std::exception& error) {
    return concat("a foreign exception: ", error.what());
  }
  return "";
}

void mutate_all(const std::vector<BackendCase>& cases, int rounds) {
  for (size_t number = 0; number < cases.size(); ++number) {
    const BackendCase& test = cases[number];
    LoadedCase loaded;
    try {
      loaded = load(test);
    } catch (const Error&) {
      continue;  // not claimed
    }
    if (loaded.data_sets.empty()) continue;
    Mutator mutator(number);
    for (int round = 0; round < rounds; ++round) {
      std::string what;
      std::unique_ptr<Graph> graph;
      EXPECT_EQ(outcome([&] { graph = mutated(loaded, mutator, what); }), "") << test.name << " " << what;
      if (graph == nullptr) continue;
      SCOPED_TRACE(concat(test.name, ", round ", round, ": ", what));
      EXPECT_EQ(outcome([&] { infer_shapes(*graph); }), "") << "shape inference";
      runtime::RunOptions options;
      options.implementation = "reference";
      options.limits = {.max_tensor_bytes = 1 << 20, .max_loop_iterations = 1000};
      NamedValues inputs;  // those that are no tensors are still inputs
      for (const Value* input : graph->inputs()) {
        const auto given = loaded.data_sets.front().inputs.find(input->name());
        if (given != loaded.data_sets.front().inputs.end()) inputs[input->name()] = given->second;
      }
      EXPECT_EQ(outcome([&] { runtime::Interpreter(*graph).run(inputs, options); }), "") << "the kernels";
    }
  }
}

TEST(Mutations, OfTheDistributionsCases) {
  const std::vector<BackendCase> cases = read_case_folder(std::string(kDebianTestData) + "/node");
  if (cases.empty()) GTEST_SKIP() << "needs the package libonnx-testdata";
  mutate_all(cases, 15);
}

TEST(Mutations, OfTheArchivesCases) {
  QUERN_NEEDS_SHARED(kNodeArchive);
  mutate_all(read_case_archive(shared_path(kNodeArchive)), 15);
}

TEST(Mutations, OfTheRecordedCases) {
  mutate_all(read_case_archive(source_path("tests/runtime/reference/fixtures/microsoft_cases.tar.gz")), 150);
}

}  // namespace
}  // namespace quern::test
