// Writes .quern files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace quern::artifact {

// Names of attachments that quern itself writes and reads. Others may be added.
inline constexpr const char* kTokenizerJson = "tokenizer.json";    // Hugging Face's format
inline constexpr const char* kTokenizerModel = "tokenizer.model";  // SentencePiece
inline constexpr const char* kChatTemplate = "chat_template.jinja";
inline constexpr const char* kGeneration = "generation.json";  // context length, end-of-sequence ids, ...
inline constexpr const char* kRecipe = "recipe.json";          // the passes that made the graph
inline constexpr const char* kCalibration = "calibration.json";
inline constexpr const char* kValidation = "validation.json";

// A file that the artifact was made from.
struct SourceFile {
  std::string name;  // without folders
  uint64_t size = 0;
  std::string sha256;  // 64 hexadecimal digits

  bool operator==(const SourceFile&) const = default;
};
// Reads all of it. Throws Error{Io}.
SourceFile describe_source(const std::filesystem::path& path);

// Writes one artifact, front to back, one tensor at a time. The file appears with finish(), whole, or not at
// all. The same calls give the same bytes. Not thread-safe.
class Writer {
 public:
  // Throws Error{Io} where `target` cannot be written.
  explicit Writer(const std::filesystem::path& target);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // What to store in place of a constant. Called once per constant of the graph and its sub-graphs, in order;
  // the result is written and released before the next call, so that a model is quantized and packed with
  // memory for its largest tensor.
  using ConstantFilter = std::function<Constant(const Value&)>;

  // The graph, to be called once. Memory that constants have mapped from files is given back as they are
  // written. Throws Error{Io}, Error{InvalidArgument} for an undefined constant, and what the filter throws.
  void write_graph(const Graph& graph, const ConstantFilter& filter = {});
  // A name replaces what an earlier call gave it.
  void add_attachment(const std::string& name, std::string_view bytes);
  void add_source(const SourceFile& source);

  // Writes the manifest and moves the file into place. Throws Error{Io}, Error{Internal} without a graph.
  void finish();

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Rewrites the artifact at `path` with one attachment added or replaced (the figures of a validation, say).
// Throws as Artifact::open and Writer do.
void set_attachment(const std::filesystem::path& path, const std::string& name, std::string_view bytes);

}  // namespace quern::artifact
