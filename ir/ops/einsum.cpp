#include "ir/ops/einsum.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

struct Term {
  std::string before;  // letters in front of the ellipsis, or all of them
  std::string after;
  bool ellipsis = false;
};

std::optional<Term> parse_term(const std::string& text) {
  Term term;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 3, "...") == 0) {
      if (term.ellipsis) return std::nullopt;
      term.ellipsis = true;
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(text[i])) != 0) {
      (term.ellipsis ? term.after : term.before) += text[i];
    } else {
      return std::nullopt;
    }
  }
  return term;
}

}  // namespace

std::optional<EinsumEquation> parse_einsum(const std::string& equation, const std::vector<int64_t>& ranks) {
  std::string text;
  for (const char c : equation) {
    if (c != ' ') text += c;
  }
  const size_t arrow = text.find("->");
  const std::string left = text.substr(0, arrow);
  std::vector<Term> terms;
  for (size_t begin = 0; begin <= left.size();) {
    const size_t comma = std::min(left.find(',', begin), left.size());
    const std::optional<Term> term = parse_term(left.substr(begin, comma - begin));
    if (!term) return std::nullopt;
    terms.push_back(*term);
    begin = comma + 1;
  }
  if (terms.size() != ranks.size()) return std::nullopt;
  // How many dimensions the ellipsis stands for; inputs may have fewer, which then broadcast.
  int64_t spread = 0;
  std::map<char, int> counts;
  for (size_t i = 0; i < terms.size(); ++i) {
    const auto letters = static_cast<int64_t>(terms[i].before.size() + terms[i].after.size());
    if (terms[i].ellipsis ? ranks[i] < letters : ranks[i] != letters) return std::nullopt;
    if (terms[i].ellipsis) spread = std::max(spread, ranks[i] - letters);
    for (const char c : terms[i].before + terms[i].after) ++counts[c];
  }
  EinsumEquation result;
  std::map<char, int> numbers;
  for (const auto& [letter, count] : counts) numbers[letter] = result.labels++;
  const int first_spread = result.labels;
  result.labels += static_cast<int>(spread);
  const auto labels_of = [&](const Term& term, int64_t rank) {
    std::vector<int> labels;
    for (const char c : term.before) labels.push_back(numbers.at(c));
    if (term.ellipsis) {
      const auto own = rank - static_cast<int64_t>(term.before.size() + term.after.size());
      for (int64_t i = spread - own; i < spread; ++i) labels.push_back(first_spread + static_cast<int>(i));
    }
    for (const char c : term.after) labels.push_back(numbers.at(c));
    return labels;
  };
  for (size_t i = 0; i < terms.size(); ++i) result.inputs.push_back(labels_of(terms[i], ranks[i]));
  Term output;
  if (arrow != std::string::npos) {
    const std::optional<Term> term = parse_term(text.substr(arrow + 2));
    if (!term) return std::nullopt;
    output = *term;
    std::string seen;
    for (const char c : output.before + output.after) {
      if (!numbers.contains(c) || seen.find(c) != std::string::npos) return std::nullopt;
      seen += c;
    }
  } else {
    output.ellipsis = true;
    for (const auto& [letter, count] : counts) {
      if (count == 1) output.after += letter;
    }
  }
  const auto rank = static_cast<int64_t>(output.before.size() + output.after.size()) + spread;
  result.output = labels_of(output, rank);
  return result;
}

namespace {

void infer_einsum(InferContext& context) {
  std::vector<int64_t> ranks;
  for (size_t i = 0; i < context.input_count(); ++i) {
    if (!context.shape(i)) return infer_rank(context, std::nullopt);
    ranks.push_back(static_cast<int64_t>(context.shape(i)->size()));
  }
  const std::string equation = context.node().string_attribute("equation", "");
  const std::optional<EinsumEquation> parsed = parse_einsum(equation, ranks);
  if (!parsed) context.fail(concat("the equation '", equation, "' does not fit the inputs"));
  std::vector<Dim> sizes(static_cast<size_t>(parsed->labels), Dim(1));
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (size_t k = 0; k < parsed->inputs[i].size(); ++k) {
      Dim& size = sizes[static_cast<size_t>(parsed->inputs[i][k])];
      const Dim& dim = (*context.shape(i))[k];
      if (size == Dim(1) || (dim.is_constant() && !(dim == Dim(1)))) size = dim;
    }
  }
  SymShape shape;
  for (const int label : parsed->output) shape.push_back(sizes[static_cast<size_t>(label)]);
  context.set_output(0, context.dtype(0), std::move(shape));
}

// (X [..., M, M]) -> [...]
void infer_det(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  if (shape) {
    if (shape->size() < 2) context.fail("the input has a rank below 2");
    shape->resize(shape->size() - 2);
  }
  context.set_output(0, context.dtype(0), shape);
}

}  // namespace

void register_einsum_schemas(SchemaTable& table) {
  table.add({.op = "Einsum",
             .min_inputs = 1,
             .max_inputs = kVariadic,
             .required_attributes = {"equation"},
             .infer = infer_einsum});
  table.add({.op = "Det", .min_inputs = 1, .max_inputs = 1, .infer = infer_det});
}

}  // namespace quern
