// Whether the files beside a model tell the same story.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quern::artifact {

// What the graph itself says; it is right where a file says otherwise.
struct GraphFacts {
  std::optional<int64_t> context_length;  // tokens for which its position tables reach
  std::optional<int64_t> vocabulary;      // rows of its embedding
};

// Where genai_config.json, generation_config.json, config.json and tokenizer_config.json in `folder` disagree
// with one another or with the graph: a sentence each, which names both and what is taken. The tokens that
// end texts disagree where those that win lack one of another file's. Files that aren't there or aren't JSON
// say nothing.
std::vector<std::string> find_contradictions(const std::filesystem::path& folder, const GraphFacts& graph);

}  // namespace quern::artifact
