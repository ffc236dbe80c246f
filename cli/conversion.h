// The outcome of `quern convert`, as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/model_facts.h"
#include "passes/compile.h"

namespace quern::cli {

struct Conversion {
  std::string model_path;
  std::string output_path;
  int64_t source_bytes = 0;    // of the model and its external data
  int64_t artifact_bytes = 0;  // of the artifact
  bool recognised = false;     // as a decoder
  bool has_tokenizer = false;
  ModelFacts facts;  // of the artifact
  std::vector<passes::WeightResult> weights;
  passes::PipelineReport report;
  std::vector<std::string> contradictions;  // between the files beside the model and its graph
  double seconds = 0;
};

// Keys: docs/cli.md, "convert".
nlohmann::ordered_json to_json(const Conversion& conversion);
std::string to_text(const Conversion& conversion);
// What whoever asked for the conversion may not expect.
std::vector<std::string> warnings_of(const Conversion& conversion);

}  // namespace quern::cli
