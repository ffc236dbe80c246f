#include "formats/onnx/input_sets.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstring>
#include <optional>

#include "formats/file/checksum.h"
#include "formats/file/mapped_file.h"
#include "formats/onnx/tensor_data.h"
#include "ir/error.h"

namespace quern::onnx_format {
namespace {

namespace fs = std::filesystem;

// K of "prefixK" and "prefixK.pb".
std::optional<int64_t> number_in(const std::string& name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size())
    return {};
  int64_t number = 0;
  const char* end = name.data() + name.size() - suffix.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, number);
  if (error != std::errc() || stop != end || number < 0) return {};
  return number;
}

// What a folder holds under such names, in the order of the numbers.
std::map<int64_t, fs::path> numbered(const fs::path& folder, std::string_view prefix,
                                     std::string_view suffix) {
  std::map<int64_t, fs::path> found;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    if (const auto number = number_in(at->path().filename(), prefix, suffix)) found[*number] = at->path();
  }
  if (failed)
    throw_error(ErrorCode::Io, "cannot read the folder '", folder.string(), "': ", failed.message());
  return found;
}

// The files of one set, by the number of the input.
struct Set {
  fs::path place;
  std::map<int64_t, fs::path> files;
};

std::vector<Set> find_sets(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {{path, {{0, path}}}};
  std::vector<Set> sets;
  if (auto files = numbered(path, "input_", ".pb"); !files.empty()) sets.push_back({path, std::move(files)});
  for (const auto& [number, folder] : numbered(path, "test_data_set_", ""))
    sets.push_back({folder, numbered(folder, "input_", ".pb")});
  if (sets.empty()) {
    throw_error(ErrorCode::BadData, "the folder '", path.string(),
                "' holds no inputs: neither input_0.pb nor test_data_set_0/input_0.pb is there");
  }
  return sets;
}

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

NamedTensor read_tensor(const fs::path& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  const std::span<const std::byte> bytes = file->bytes();
  if (bytes.empty())
    throw_error(ErrorCode::BadData, "'", path.string(), "' is empty; expected a TensorProto");
  onnx::TensorProto proto;
  if (bytes.size() > INT_MAX || !proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw_error(ErrorCode::BadData, "'", path.string(),
                "' is no TensorProto: the file is truncated, damaged or of another kind");
  }
  return with_context("reading '" + path.string() + "'", [&] {
    if (proto.data_type() == 0) {
      throw_error(ErrorCode::BadData,
                  "it is no TensorProto with elements of any type; sequences and optionals are not taken");
    }
    ExternalFiles external(path);
    return NamedTensor{proto.name(), TensorReader(file, {}, external).read(proto)};
  });
}

// Of the input, the first axis left aside: a set may hold any number of samples unless the model says
// otherwise.
void check_fits(const Tensor& tensor, const Value& input, const fs::path& file) {
  const ValueType& type = input.type();
  const auto refuse = [&](const char* why) {
    throw_error(ErrorCode::BadData, "'", file.string(), "' holds ", to_string(tensor.dtype()), " ",
                to_string(tensor.shape()), why, "the model's input '", input.name(), "' is ",
                to_string(type));
  };
  if (type.dtype != DType::Undefined && tensor.dtype() != type.dtype) refuse("; ");
  if (tensor.rank() == 0) refuse(", a single number, and the first axis must count samples; ");
  if (!type.shape) return;
  if (static_cast<int64_t>(type.shape->size()) != tensor.rank()) refuse("; ");
  for (size_t axis = 0; axis < type.shape->size(); ++axis) {
    const std::optional<int64_t> length = (*type.shape)[axis].as_constant();
    if (length && *length != tensor.shape()[axis]) refuse("; ");
  }
}

size_t input_for(const std::string& name, int64_t number, const std::vector<Value*>& inputs, const Set& set,
                 const fs::path& file) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]->name() == name) return i;
  }
  if (number >= static_cast<int64_t>(inputs.size())) {
    throw_error(ErrorCode::BadData, "'", file.string(), "' in '", set.place.string(),
                "' is for an input that the model has not: it has ", inputs.size(),
                inputs.size() == 1 ? " input" : " inputs");
  }
  return static_cast<size_t>(number);
}

Tensor joined(const std::vector<Tensor>& parts) {
  if (parts.size() == 1) return parts.front();
  Shape shape = parts.front().shape();
  shape[0] = 0;
  for (const Tensor& part : parts) shape[0] += part.dim(0);
  Tensor all = Tensor::zeros(parts.front().dtype(), shape);
  std::byte* out = all.mutable_bytes();
  for (const Tensor& part : parts) {
    std::memcpy(out, part.bytes(), static_cast<size_t>(part.byte_size()));
    out += part.byte_size();
  }
  return all;
}

bool differ_behind_first(const Shape& a, const Shape& b) {
  return a.size() != b.size() || !std::equal(a.begin() + 1, a.end(), b.begin() + 1);
}

}  // namespace

bool is_input_sets(const std::filesystem::path& path) {
  std::error_code ignored;
  return path.extension() == ".pb" || fs::is_directory(path, ignored);
}

std::string digest_of_input_sets(const std::filesystem::path& path) {
  Sha256 hash;
  for (const Set& set : find_sets(path)) {
    for (const auto& [number, file] : set.files) hash.update(sha256_of_file(file));
  }
  return to_hex(hash.finish());
}

InputSets read_input_sets(const std::filesystem::path& path, const std::vector<Value*>& inputs) {
  std::vector<std::vector<Tensor>> parts(inputs.size());
  const std::vector<Set> sets = find_sets(path);
  for (const Set& set : sets) {
    for (const auto& [number, file] : set.files) {
      auto [name, tensor] = read_tensor(file);
      const size_t index = input_for(name, number, inputs, set, file);
      const Value& input = *inputs[index];
      if (parts[index].size() > static_cast<size_t>(&set - sets.data())) {
        throw_error(ErrorCode::BadData, "'", file.string(), "' is for the input '", input.name(),
                    "', and so is another file of the set");
      }
      check_fits(tensor, input, file);
      if (!parts[index].empty() && differ_behind_first(parts[index].front().shape(), tensor.shape())) {
        throw_error(ErrorCode::BadData, "'", file.string(), "' has the shape ", to_string(tensor.shape()),
                    ", and a set before it ", to_string(parts[index].front().shape()), " for the input '",
                    input.name(), "'; sets may differ in the first axis alone");
      }
      if (bit_width(tensor.dtype()) < 8 || tensor.dtype() == DType::String) {
        throw_error(ErrorCode::BadData, "'", file.string(), "' holds ", to_string(tensor.dtype()),
                    ", which no input is made of");
      }
      parts[index].push_back(std::move(tensor));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (parts[i].size() == static_cast<size_t>(&set - sets.data()) + 1) continue;
      throw_error(ErrorCode::BadData, "'", (set.place / concat("input_", i, ".pb")).string(),
                  "' is missing: the model's input '", inputs[i]->name(), "' has no tensor in this set");
    }
  }
  InputSets result{.arrays = {}, .digest = digest_of_input_sets(path)};
  for (size_t i = 0; i < inputs.size(); ++i) result.arrays[inputs[i]->name()] = joined(parts[i]);
  return result;
}

}  // namespace quern::onnx_format
