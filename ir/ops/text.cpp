// Strings.
#include <algorithm>

#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// Y [..., parts], counts [...]
void infer_string_split(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  context.set_output(1, DType::I64, shape);
  if (shape) shape->push_back(Dim::fresh());
  context.set_output(0, DType::String, shape);
}

// Words that are filtered out shorten a vector, or a single row.
void infer_string_normalizer(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  if (shape && !shape->empty()) shape->back() = Dim::fresh();
  context.set_output(0, DType::String, shape);
}

void infer_tf_idf(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  if (shape) {
    const std::vector<int64_t> indexes = context.node().ints_attribute("ngram_indexes", {});
    const int64_t last = indexes.empty() ? -1 : *std::max_element(indexes.begin(), indexes.end());
    if (last < -1 || last >= int64_t{1} << 40) context.fail(concat("an n-gram has the index ", last));
    const int64_t columns = last + 1;
    if (shape->size() == 2) {
      shape->back() = Dim(columns);
    } else {
      shape = SymShape{Dim(columns)};
    }
  }
  context.set_output(0, DType::F32, shape);
}

}  // namespace

void register_text_schemas(SchemaTable& table) {
  table.add({.op = "StringConcat", .min_inputs = 2, .max_inputs = 2, .infer = infer_broadcast});
  table.add(
      {.op = "StringSplit", .min_inputs = 1, .max_inputs = 1, .max_outputs = 2, .infer = infer_string_split});
  table.add({.op = "StringNormalizer", .min_inputs = 1, .max_inputs = 1, .infer = infer_string_normalizer});
  table.add({.op = "TfIdfVectorizer",
             .min_inputs = 1,
             .max_inputs = 1,
             .required_attributes = {"mode", "ngram_counts", "ngram_indexes"},
             .infer = infer_tf_idf});
}

}  // namespace quern
