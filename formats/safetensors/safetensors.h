// Safetensors files: named tensors behind a JSON header.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "ir/tensor.h"

namespace quern::safetensors {

struct File {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;  // the header's __metadata__

  // Throws Error{BadData} where there is no such tensor.
  const Tensor& at(const std::string& name) const;
};

// Opens the file; the tensors are views of the mapping and are not read (Bool excepted).
// Throws Error{Io}; Error{Corrupt} where the header is malformed, too long for the file, or does not account
// for every byte of the data exactly once; Error{Unsupported} for element types that quern has not.
File read(const std::filesystem::path& path);
// The same from memory that `owner` keeps alive; `name` is for messages.
File parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, const std::string& name);

// Writes the tensors, widest elements first and then by name, so that all are aligned. Deterministic and
// atomic. Throws Error{Io}; Error{Unsupported} for a dtype that the format has not (strings, integers below 8
// bits).
void write(const std::filesystem::path& path, const File& file);

}  // namespace quern::safetensors
