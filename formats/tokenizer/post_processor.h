// What a tokenizer adds around the ids of a text.
#pragma once

#include <cstdint>
#include <vector>

namespace quern::tokenizer {

// A template: special ids, and the places where the text goes.
class PostProcessor {
 public:
  struct Part {
    bool is_text = false;
    std::vector<int64_t> ids;  // of a special token, otherwise
  };

  // Adds a template that is applied to the result of the ones before.
  void add(std::vector<Part> parts) { templates_.push_back(std::move(parts)); }
  void apply(std::vector<int64_t>& ids) const;
  const std::vector<std::vector<Part>>& templates() const { return templates_; }

 private:
  std::vector<std::vector<Part>> templates_;
};

}  // namespace quern::tokenizer
