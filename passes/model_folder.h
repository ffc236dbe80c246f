// What belongs to a model beside its graph: tokenizer, chat template, configuration. An ONNX model has it in
// files in its folder, an artifact inside.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/artifact/artifact.h"
#include "formats/artifact/generation_config.h"
#include "formats/chat_template/chat_template.h"
#include "formats/tokenizer/tokenizer.h"
#include "ir/graph.h"

namespace quern::passes {

struct FoundTokenizer {
  tokenizer::Tokenizer tokenizer;
  std::string origin;  // a path, or "tokenizer.json in the artifact"
};

struct ModelFolder {
  std::optional<FoundTokenizer> tokenizer;
  artifact::GenerationConfig generation;
  chat_template::ChatFiles chat;

  // As an artifact carries it, by the names of formats/artifact/SPEC.md.
  std::map<std::string, std::string> attachments() const;
};

// Of an ONNX model: looked for in the model's folder and, where that is called "onnx", as in repositories for
// transformers.js, in the one above it. Ids that the configuration doesn't give come from the tokenizer.
// `tokenizer`: takes that one instead (see find_tokenizer()). Throws what the tokenizer's reader throws;
// Error{Corrupt} for a configuration that is no JSON.
ModelFolder read_model_folder(const std::filesystem::path& model,
                              const std::optional<std::filesystem::path>& tokenizer = {});

// Of an artifact: what it carries. Throws as above.
ModelFolder read_model_folder(const artifact::Artifact& artifact);

// The tokenizer that belongs to `path`: a tokenizer file itself, a folder that holds one, an ONNX model with
// one beside it, or an artifact with one inside. Throws Error{Io} naming where none was found.
FoundTokenizer find_tokenizer(const std::filesystem::path& path);

// Throws Error{BadData} where the tokenizer has ids beyond the table that the graph of a decoder looks them
// up in. Fewer are fine: vocabularies are padded.
void check_tokenizer(const ModelFolder& folder, const Graph& graph);

// Where the files beside an ONNX model disagree with one another or with its graph (see
// artifact::find_contradictions()), before apply_context_length(). Nothing for what is no decoder.
std::vector<std::string> find_contradictions(const std::filesystem::path& model, const Graph& graph);

// Tells a decoder how long a sequence may be: its metadata context_length becomes the configuration's, unless
// it is less already (position tables that end).
void apply_context_length(const ModelFolder& folder, Graph& graph);

}  // namespace quern::passes
