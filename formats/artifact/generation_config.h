// What generation needs to know beside the graph: the attachment generation.json, and the files of other
// tools that it is gathered from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quern::artifact {

// Everything may be absent. Sampling values are what the model's makers suggest.
struct GenerationConfig {
  std::optional<int64_t> context_length;  // tokens of prompt and answer together
  std::vector<int64_t> eos_ids;           // any of them ends an answer
  std::optional<int64_t> bos_id;
  std::optional<int64_t> pad_id;
  std::optional<bool> sample;  // draw from the distribution rather than take the likeliest
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;

  bool empty() const { return *this == GenerationConfig{}; }
  bool operator==(const GenerationConfig&) const = default;

  // The attachment: an object with those keys that are present, in that order. parse() ignores unknown keys.
  // Throws Error{Corrupt} for what is no JSON object or has a value of another type.
  std::string to_json() const;
  static GenerationConfig parse(std::string_view json);
};

// From the configuration files in a model's folder, the first that says something winning: genai_config.json
// (ONNX Runtime GenAI), generation_config.json, config.json (Hugging Face). Values of another type than
// expected are passed over: these files are other tools' and say much else. Throws Error{Corrupt} for a file
// that is no JSON, naming it.
GenerationConfig read_generation_config(const std::filesystem::path& folder);

}  // namespace quern::artifact
