// Symbolic dimensions: integer polynomials over named symbols, such as 2*batch*sequence + past.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

// Equality is equality of polynomials: "a + b" equals "b + a". Symbols are told apart by name alone and stand
// for integers >= 0. A dimension nobody knows anything about is a fresh symbol, equal only to itself.
class Dim {
 public:
  Dim(int64_t constant = 0) : constant_(constant) {}  // NOLINT: an integer is a dimension
  static Dim symbol(std::string name);
  // A symbol that no other has: "?7".
  static Dim fresh();
  // An exporter's dim_param: a name, or sums and products of names and integers ("past + sequence",
  // "2*heads"); anything else becomes one opaque symbol with that text as its name.
  static Dim parse(std::string_view text);

  bool is_constant() const { return terms_.empty(); }
  // The value of a constant dimension. Throws Error{Internal} for a symbolic one.
  int64_t constant() const;
  std::optional<int64_t> as_constant() const;
  // Whether this is one symbol alone, and then its name.
  std::optional<std::string> as_symbol() const;
  // A bound from below that holds whatever the symbols stand for: the constant, if no term is subtracted.
  std::optional<int64_t> lower_bound() const;
  std::vector<std::string> symbols() const;

  // Constants wrap; a product of very many terms is a fresh symbol.
  Dim operator+(const Dim& other) const;
  Dim operator-(const Dim& other) const;
  Dim operator*(const Dim& other) const;
  bool operator==(const Dim& other) const = default;
  bool operator<(const Dim& other) const;  // an arbitrary total order, for maps

  // The quotient, if the polynomial division leaves no remainder. Nothing for a zero divisor.
  std::optional<Dim> divided_by(const Dim& divisor) const;
  // Every symbol replaced by its value where `values` has it.
  Dim substitute(const std::map<std::string, Dim>& values) const;

  std::string to_string() const;  // "2*batch*seq + past + 1"

  // The polynomial taken apart: products of symbols with coefficients other than 0, and what is added to
  // them.
  using Monomial = std::vector<std::string>;  // sorted, with repetition
  const std::map<Monomial, int64_t>& terms() const { return terms_; }
  int64_t offset() const { return constant_; }

 private:
  void add_term(const Monomial& monomial, int64_t coefficient);

  int64_t constant_ = 0;
  std::map<Monomial, int64_t> terms_;  // no zero coefficients
};

using SymShape = std::vector<Dim>;

std::string to_string(const SymShape& shape);
Dim product(std::span<const Dim> dims);
// The concrete shape if every dimension is constant.
std::optional<std::vector<int64_t>> as_constant(const SymShape& shape);

}  // namespace quern
