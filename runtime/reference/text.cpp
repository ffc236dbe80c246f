// Strings, and counts of n-grams.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

const std::vector<std::string>& strings_of(KernelContext& context, size_t input) {
  const Tensor& x = context.input(input);
  if (x.dtype() != DType::String)
    context.fail("input ", input, " is ", to_string(x.dtype()), ", expected strings");
  return x.strings();
}

void run_string_concat(KernelContext& context) {
  const auto& a = strings_of(context, 0);
  const auto& b = strings_of(context, 1);
  const Shape& shape_a = context.input(0).shape();
  const Shape& shape_b = context.input(1).shape();
  const Shape shape = broadcast_shapes(shape_a, shape_b);
  context.checked_count(DType::String, shape);
  std::vector<std::string> out;
  for_each_offset<2>(
      shape, {broadcast_strides(shape_a, shape), broadcast_strides(shape_b, shape)},
      [&](int64_t i, int64_t j) { out.push_back(a[static_cast<size_t>(i)] + b[static_cast<size_t>(j)]); });
  context.set_output(0, Tensor::from_strings(shape, std::move(out)));
}

// Without a delimiter: at runs of white space, none at the ends. `most` < 0: at every one.
std::vector<std::string> split(const std::string& text, const std::string& delimiter, int64_t most) {
  std::vector<std::string> parts;
  const auto full = [&] { return most >= 0 && static_cast<int64_t>(parts.size()) >= most; };
  if (!delimiter.empty()) {
    size_t begin = 0;
    for (size_t at = 0; !full() && (at = text.find(delimiter, begin)) != std::string::npos;) {
      parts.push_back(text.substr(begin, at - begin));
      begin = at + delimiter.size();
    }
    parts.push_back(text.substr(begin));
    return parts;
  }
  constexpr const char* kSpace = " \t\n\v\f\r";
  size_t begin = text.find_first_not_of(kSpace);
  while (begin != std::string::npos) {
    size_t end = text.find_first_of(kSpace, begin);
    if (full()) end = text.find_last_not_of(kSpace) + 1;
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos || end >= text.size()) break;
    begin = text.find_first_not_of(kSpace, end);
  }
  return parts;
}

void run_string_split(KernelContext& context) {
  const std::string delimiter = context.node().string_attribute("delimiter", "");
  const int64_t most = context.node().int_attribute("maxsplit", -1);
  std::vector<std::vector<std::string>> rows;
  std::vector<int64_t> counts;
  size_t widest = 0;
  for (const std::string& text : strings_of(context, 0)) {
    rows.push_back(split(text, delimiter, most));
    counts.push_back(static_cast<int64_t>(rows.back().size()));
    widest = std::max(widest, rows.back().size());
  }
  Shape shape = context.input(0).shape();
  context.set_output(1, Tensor::from<int64_t>(shape, counts));
  shape.push_back(static_cast<int64_t>(widest));
  context.checked_count(DType::String, shape);
  std::vector<std::string> out;
  for (auto& row : rows) {
    row.resize(widest);
    out.insert(out.end(), row.begin(), row.end());
  }
  context.set_output(0, Tensor::from_strings(shape, std::move(out)));
}

std::string changed_case(const KernelContext& context, std::string text, const std::string& action) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 && action != "NONE") context.unsupported("changing the case of letters beyond ASCII");
    if (action == "LOWER") c = static_cast<char>(std::tolower(byte));
    if (action == "UPPER") c = static_cast<char>(std::toupper(byte));
  }
  return text;
}

// Whole elements that are stop words go; if nothing is left, one empty string stays.
void run_string_normalizer(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const std::string action = node.string_attribute("case_change_action", "NONE");
  const bool sensitive = node.int_attribute("is_case_sensitive", 0) != 0;
  if (x.rank() != 1 && !(x.rank() == 2 && x.dim(0) == 1)) {
    context.fail("the input has the shape ", to_string(x.shape()), ", expected [C] or [1, C]");
  }
  const auto folded = [&](const std::string& text) {
    return sensitive ? text : changed_case(context, text, action == "NONE" ? "LOWER" : action);
  };
  std::set<std::string> stop_words;
  if (const auto* given = node.attribute<std::vector<std::string>>("stopwords")) {
    for (const std::string& word : *given) stop_words.insert(folded(word));
  }
  std::vector<std::string> out;
  for (const std::string& text : strings_of(context, 0)) {
    if (!stop_words.contains(folded(text))) out.push_back(changed_case(context, text, action));
  }
  if (out.empty()) out.emplace_back();
  Shape shape = x.shape();
  shape.back() = static_cast<int64_t>(out.size());
  context.set_output(0, Tensor::from_strings(shape, std::move(out)));
}

// The pool's n-grams by their words; the number is that of the n-gram in the pool.
template <class Word>
std::map<std::vector<Word>, size_t> ngrams_of(const KernelContext& context, const std::vector<Word>& pool) {
  const std::vector<int64_t> starts = context.node().ints_attribute("ngram_counts", {});
  std::map<std::vector<Word>, size_t> ngrams;
  size_t number = 0;
  for (size_t n = 0; n < starts.size(); ++n) {
    const auto size = static_cast<int64_t>(n) + 1;
    const int64_t end = n + 1 < starts.size() ? starts[n + 1] : static_cast<int64_t>(pool.size());
    if (starts[n] < 0 || end > static_cast<int64_t>(pool.size()))
      context.fail("ngram_counts do not fit the pool");
    for (int64_t at = starts[n]; at + size <= end; at += size) {
      ngrams[std::vector<Word>(pool.begin() + at, pool.begin() + at + size)] = number++;
    }
  }
  return ngrams;
}

template <class Word>
void count_ngrams(const KernelContext& context, const std::map<std::vector<Word>, size_t>& ngrams,
                  const std::vector<Word>& row, std::vector<double>& counts) {
  const Node& node = context.node();
  const std::vector<int64_t> columns = node.ints_attribute("ngram_indexes", {});
  const int64_t least = node.int_attribute("min_gram_length", 1);
  const int64_t most = node.int_attribute("max_gram_length", 1);
  const auto length = static_cast<int64_t>(row.size());
  const int64_t skips = std::min(node.int_attribute("max_skip_count", 0), length);
  for (int64_t distance = 1; distance <= skips + 1; ++distance) {
    for (int64_t start = 0; start < length; ++start) {
      std::vector<Word> gram;
      for (int64_t at = start; at < length && static_cast<int64_t>(gram.size()) < most; at += distance) {
        gram.push_back(row[static_cast<size_t>(at)]);
        const auto size = static_cast<int64_t>(gram.size());
        // Single words do not depend on the distance and count once.
        if (size < least || (size == 1 && distance > 1)) continue;
        const auto found = ngrams.find(gram);
        if (found == ngrams.end()) continue;
        if (found->second >= columns.size()) context.fail("ngram_indexes are too few");
        counts[static_cast<size_t>(columns[found->second])] += 1;
      }
    }
  }
}

template <class Word>
std::vector<double> vectorize(const KernelContext& context, const std::vector<Word>& words, int64_t rows,
                              const std::vector<Word>& pool, int64_t columns) {
  const std::map<std::vector<Word>, size_t> ngrams = ngrams_of(context, pool);
  const std::string mode = context.node().string_attribute("mode", "TF");
  const std::vector<float> weights = context.node().floats_attribute("weights", {});
  const int64_t width = rows == 0 ? 0 : static_cast<int64_t>(words.size()) / rows;
  std::vector<double> out;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> counts(static_cast<size_t>(columns), 0.0);
    count_ngrams(context, ngrams,
                 std::vector<Word>(words.begin() + r * width, words.begin() + (r + 1) * width), counts);
    for (size_t i = 0; i < counts.size(); ++i) {
      const double weight = i < weights.size() ? weights[i] : 1.0;
      if (mode == "IDF") counts[i] = counts[i] > 0 ? weight : 0;
      if (mode == "TFIDF") counts[i] *= weight;
    }
    out.insert(out.end(), counts.begin(), counts.end());
  }
  return out;
}

void run_tf_idf_vectorizer(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  if (x.rank() > 2) context.fail("the input has rank ", x.rank());
  const std::vector<int64_t> indexes = node.ints_attribute("ngram_indexes", {});
  for (const int64_t index : indexes) {
    if (index < 0 || index > (int64_t{1} << 28)) context.fail("ngram_indexes hold ", index);
  }
  const int64_t columns = indexes.empty() ? 0 : *std::max_element(indexes.begin(), indexes.end()) + 1;
  const int64_t rows = x.rank() == 2 ? x.dim(0) : 1;
  const Shape shape = x.rank() == 2 ? Shape{rows, columns} : Shape{columns};
  context.checked_count(DType::F64, shape);
  std::vector<double> out;
  if (x.dtype() == DType::String) {
    const auto* pool = node.attribute<std::vector<std::string>>("pool_strings");
    if (pool == nullptr) context.fail("pool_strings are missing");
    out = vectorize(context, x.strings(), rows, *pool, columns);
  } else {
    out = vectorize(context, int_values(x), rows, node.ints_attribute("pool_int64s", {}), columns);
  }
  context.set_output(0, to_tensor(DType::F32, shape, out));
}

}  // namespace

void register_text(KernelTable& table) {
  add_reference(table, {"StringConcat"}, run_string_concat);
  add_reference(table, {"StringSplit"}, run_string_split);
  add_reference(table, {"StringNormalizer"}, run_string_normalizer);
  add_reference(table, {"TfIdfVectorizer"}, run_tf_idf_vectorizer);
}

}  // namespace quern::runtime::reference
