// Held-out or calibration data from files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/tokenizer/tokenizer.h"
#include "ir/graph.h"

namespace quern::calibrate {

struct Document {
  std::vector<int64_t> ids;
  std::optional<int64_t> label;
  int64_t line = 0;  // of the file, from 1; 0 for a text that is one document
  // So many of the ids, from the first, are what the tokenizer puts before a text (Tokenizer::opening()).
  int64_t opening = 0;
};

struct DatasetOptions {
  const tokenizer::Tokenizer* tokenizer = nullptr;  // for text; ids need none
  bool add_special_tokens = true;                   // see tokenizer::EncodeOptions
  int64_t samples = 0;                              // at most so many documents or tensors; 0: all
};

// Token ids, from a file of one of these kinds:
//   *.jsonl, *.ndjson   an object per line: {"text": "..."} or {"ids": [...]} ("input_ids" is taken too), and
//                       optionally "label", an integer; all lines have one or none has
//   anything else       UTF-8 text, one document, encoded whole
struct TokenData {
  std::string source;  // the path, for messages and reports
  std::string digest;  // SHA-256 of the file
  bool is_text = false;
  std::vector<Document> documents;

  bool labelled() const { return !documents.empty() && documents.front().label.has_value(); }
  int64_t tokens() const;
  // "line 12 of 'x.jsonl'" or "'x.txt'".
  std::string where(const Document& document) const;

  // Throws Error{BadData}, naming where, for an id that is not below `vocabulary`; 0: any is allowed.
  void check_ids(int64_t vocabulary) const;

  // Throws Error{Io}; Error{BadData} naming the line for what is empty, not UTF-8, not JSON or of another
  // shape, and for text without a tokenizer.
  static TokenData load(const std::filesystem::path& path, const DatasetOptions& options);
  // The same from memory.
  static TokenData parse_text(std::string_view text, std::string source, const DatasetOptions& options);
  static TokenData parse_lines(std::string_view lines, std::string source, const DatasetOptions& options);
};

// Whether `path` names arrays (.npy, .npz, .pb and folders of .pb) rather than tokens.
bool is_tensor_file(const std::filesystem::path& path);

// Named input tensors, cut into samples along the first axis as they are asked for.
class TensorData {
 public:
  // For a graph with these inputs. *.npz: an array per input, by name; *.npy: the one input; *.pb, and
  // folders of such: see formats/onnx/input_sets.h. "label" or "labels" in an .npz are labels. Throws
  // Error{Io}, Error{Corrupt}, and Error{BadData} for an .npy file where there are several inputs, and where
  // the arrays disagree about the number of samples.
  static TensorData load(const std::filesystem::path& path, const std::vector<Value*>& inputs,
                         const DatasetOptions& options);

  int64_t samples() const { return samples_; }
  const std::map<std::string, Tensor>& arrays() const { return arrays_; }
  bool labelled() const { return labels_.defined(); }
  int64_t label(int64_t sample) const { return labels_.int_at(sample); }
  // The arrays of samples first .. first + count - 1, sharing their bytes.
  std::map<std::string, Tensor> slice(int64_t first, int64_t count) const;
  const std::string& source() const { return source_; }
  const std::string& digest() const { return digest_; }

 private:
  std::string source_;
  std::string digest_;
  int64_t samples_ = 0;
  std::map<std::string, Tensor> arrays_;
  Tensor labels_;
};

// The SHA-256 that tells data apart: of the file, or of all files of a folder (TensorData::digest(),
// TokenData::digest). Throws Error{Io}.
std::string digest_of_data(const std::filesystem::path& path);

}  // namespace quern::calibrate
