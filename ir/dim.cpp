#include "ir/dim.h"

#include <algorithm>
#include <atomic>
#include <cctype>

#include "ir/error.h"

namespace quern {
namespace {

// Wraps: dimensions near the limits of int64 come from hostile files alone, and no run can have them.
int64_t wrapping_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t wrapping_mul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// A product with more terms, or a term with more factors, is one unknown: a small file could square a sum
// over and over.
constexpr size_t kMaxTerms = 128;
constexpr size_t kMaxFactors = 24;

// Sums of products of names and integers; fails on anything else.
class DimParser {
 public:
  explicit DimParser(std::string_view text) : text_(text) {}

  std::optional<Dim> parse() {
    std::optional<Dim> sum = parse_product();
    while (sum && !at_end()) {
      const char op = take();
      if (op != '+' && op != '-') return std::nullopt;
      const std::optional<Dim> term = parse_product();
      if (!term) return std::nullopt;
      sum = op == '+' ? *sum + *term : *sum - *term;
    }
    return sum;
  }

 private:
  std::optional<Dim> parse_product() {
    std::optional<Dim> result = parse_atom();
    while (result && !at_end() && text_[at_] == '*') {
      ++at_;
      const std::optional<Dim> factor = parse_atom();
      if (!factor) return std::nullopt;
      result = *result * *factor;
    }
    return result;
  }

  std::optional<Dim> parse_atom() {
    if (at_end()) return std::nullopt;
    const size_t begin = at_;
    const auto is_word = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
    };
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    const std::string word(text_.substr(begin, at_ - begin));
    if (word.empty()) return std::nullopt;
    if (std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); })) {
      return word.size() > 15 ? std::nullopt : std::optional<Dim>(std::stoll(word));
    }
    if (std::isdigit(static_cast<unsigned char>(word[0]))) return std::nullopt;
    return Dim::symbol(word);
  }

  bool at_end() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ == text_.size();
  }
  char take() { return text_[at_++]; }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Dim Dim::symbol(std::string name) {
  Dim dim;
  dim.terms_[{std::move(name)}] = 1;
  return dim;
}

Dim Dim::fresh() {
  static std::atomic<int64_t> next{0};
  return symbol("?" + std::to_string(next++));
}

Dim Dim::parse(std::string_view text) {
  // A file's "?7" is somebody's unnamed dimension, and must not be taken for the one that fresh() calls so
  // here.
  if (text.empty() || text.front() == '?') return fresh();
  const std::optional<Dim> parsed = DimParser(text).parse();
  return parsed ? *parsed : symbol(std::string(text));
}

int64_t Dim::constant() const {
  if (!is_constant()) throw_error(ErrorCode::Internal, "dimension ", to_string(), " is not a constant");
  return constant_;
}

std::optional<int64_t> Dim::as_constant() const {
  return is_constant() ? std::optional<int64_t>(constant_) : std::nullopt;
}

std::optional<std::string> Dim::as_symbol() const {
  if (constant_ != 0 || terms_.size() != 1) return std::nullopt;
  const auto& [monomial, coefficient] = *terms_.begin();
  if (coefficient != 1 || monomial.size() != 1) return std::nullopt;
  return monomial.front();
}

std::optional<int64_t> Dim::lower_bound() const {
  for (const auto& [monomial, coefficient] : terms_) {
    if (coefficient < 0) return std::nullopt;
  }
  return constant_;
}

std::vector<std::string> Dim::symbols() const {
  std::vector<std::string> names;
  for (const auto& [monomial, coefficient] : terms_)
    names.insert(names.end(), monomial.begin(), monomial.end());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void Dim::add_term(const Monomial& monomial, int64_t coefficient) {
  if (monomial.empty()) {
    constant_ = wrapping_add(constant_, coefficient);
    return;
  }
  int64_t& sum = terms_[monomial];
  sum = wrapping_add(sum, coefficient);
  if (sum == 0) terms_.erase(monomial);
}

Dim Dim::operator+(const Dim& other) const {
  Dim sum = *this;
  sum.constant_ = wrapping_add(sum.constant_, other.constant_);
  for (const auto& [monomial, coefficient] : other.terms_) sum.add_term(monomial, coefficient);
  return sum;
}

Dim Dim::operator-(const Dim& other) const {
  return *this + other * Dim(-1);
}

Dim Dim::operator*(const Dim& other) const {
  if ((terms_.size() + 1) * (other.terms_.size() + 1) > kMaxTerms) return fresh();
  Dim result(wrapping_mul(constant_, other.constant_));
  for (const auto& [monomial, coefficient] : terms_) {
    if (other.constant_ != 0) result.add_term(monomial, wrapping_mul(coefficient, other.constant_));
  }
  for (const auto& [monomial, coefficient] : other.terms_) {
    if (constant_ != 0) result.add_term(monomial, wrapping_mul(coefficient, constant_));
    for (const auto& [mine, my_coefficient] : terms_) {
      if (mine.size() + monomial.size() > kMaxFactors) return fresh();
      Monomial merged = mine;
      merged.insert(merged.end(), monomial.begin(), monomial.end());
      std::sort(merged.begin(), merged.end());
      result.add_term(merged, wrapping_mul(coefficient, my_coefficient));
    }
  }
  return result;
}

bool Dim::operator<(const Dim& other) const {
  return constant_ != other.constant_ ? constant_ < other.constant_ : terms_ < other.terms_;
}

std::optional<Dim> Dim::divided_by(const Dim& divisor) const {
  if (*this == divisor && !(divisor == Dim(0))) return Dim(1);
  // Only a single-term divisor (an integer, a symbol, or a product) is divided out; that is what reshapes
  // need.
  Monomial by;
  int64_t coefficient = divisor.constant_;
  if (!divisor.terms_.empty()) {
    if (divisor.constant_ != 0 || divisor.terms_.size() != 1) return std::nullopt;
    by = divisor.terms_.begin()->first;
    coefficient = divisor.terms_.begin()->second;
  }
  if (coefficient == 0) return std::nullopt;
  if (coefficient == -1) return (*this * Dim(-1)).divided_by(divisor * Dim(-1));
  if (!by.empty() && constant_ != 0) return std::nullopt;
  if (constant_ % coefficient != 0) return std::nullopt;
  Dim quotient(by.empty() ? constant_ / coefficient : 0);
  for (const auto& [monomial, mine] : terms_) {
    if (mine % coefficient != 0) return std::nullopt;
    if (!std::includes(monomial.begin(), monomial.end(), by.begin(), by.end())) return std::nullopt;
    Monomial rest;
    std::set_difference(monomial.begin(), monomial.end(), by.begin(), by.end(), std::back_inserter(rest));
    quotient.add_term(rest, mine / coefficient);
  }
  return quotient;
}

Dim Dim::substitute(const std::map<std::string, Dim>& values) const {
  Dim result(constant_);
  for (const auto& [monomial, coefficient] : terms_) {
    Dim term(coefficient);
    for (const std::string& name : monomial) {
      const auto found = values.find(name);
      term = term * (found == values.end() ? symbol(name) : found->second);
    }
    result = result + term;
  }
  return result;
}

std::string Dim::to_string() const {
  std::string text;
  for (const auto& [monomial, coefficient] : terms_) {
    if (!text.empty()) text += coefficient < 0 ? " - " : " + ";
    const int64_t magnitude = text.empty() ? coefficient : std::abs(coefficient);
    if (magnitude != 1) text += std::to_string(magnitude) + "*";
    for (size_t i = 0; i < monomial.size(); ++i) text += (i ? "*" : "") + monomial[i];
  }
  if (text.empty()) return std::to_string(constant_);
  if (constant_ > 0) text += " + " + std::to_string(constant_);
  if (constant_ < 0) text += " - " + std::to_string(-constant_);
  return text;
}

std::string to_string(const SymShape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + shape[i].to_string();
  return text + "]";
}

Dim product(std::span<const Dim> dims) {
  Dim result(1);
  for (const Dim& dim : dims) result = result * dim;
  return result;
}

std::optional<std::vector<int64_t>> as_constant(const SymShape& shape) {
  std::vector<int64_t> dims;
  for (const Dim& dim : shape) {
    if (!dim.is_constant()) return std::nullopt;
    dims.push_back(dim.constant());
  }
  return dims;
}

}  // namespace quern
