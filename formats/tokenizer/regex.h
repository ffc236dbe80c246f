// Regular expressions of tokenizer files: Oniguruma's syntax, which Hugging Face `tokenizers` uses, with the
// Unicode version of our own tables.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace quern::tokenizer {

class Regex {
 public:
  struct Match {
    size_t begin;
    size_t end;
  };
  // Throws Error{InvalidModel} for a pattern that isn't one.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Matches from left to right through `text`, each starting where the last one ended; an empty match
  // directly behind another match is passed over. Throws Error{BadData} where matching takes too many steps.
  class Iterator {
   public:
    Iterator(const Regex& regex, std::string_view text) : regex_(regex), text_(text) {}
    std::optional<Match> next();

   private:
    const Regex& regex_;
    std::string_view text_;
    size_t from_ = 0;
    std::optional<size_t> last_end_;
  };

  const std::string& pattern() const { return pattern_; }

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace quern::tokenizer
