#include "formats/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "formats/file/atomic_file.h"
#include "formats/file/mapped_file.h"
#include "formats/file/mapped_tensor.h"
#include "ir/error.h"

namespace quern::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read and written in place");

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation
constexpr int kMaxDepth = 3;                       // header, tensor, list of numbers
constexpr const char* kMetadataKey = "__metadata__";

struct TypeName {
  const char* name;
  DType dtype;
};
constexpr TypeName kTypeNames[] = {{"F64", DType::F64},
                                   {"F32", DType::F32},
                                   {"F16", DType::F16},
                                   {"BF16", DType::BF16},
                                   {"F8_E4M3", DType::F8E4M3},
                                   {"F8_E5M2", DType::F8E5M2},
                                   {"F8_E4M3FNUZ", DType::F8E4M3FNUZ},
                                   {"F8_E5M2FNUZ", DType::F8E5M2FNUZ},
                                   {"F8_E8M0", DType::F8E8M0},
                                   {"F4", DType::F4E2M1},
                                   {"I64", DType::I64},
                                   {"I32", DType::I32},
                                   {"I16", DType::I16},
                                   {"I8", DType::I8},
                                   {"U64", DType::U64},
                                   {"U32", DType::U32},
                                   {"U16", DType::U16},
                                   {"U8", DType::U8},
                                   {"BOOL", DType::Bool}};

DType dtype_of_name(const std::string& name) {
  for (const TypeName& row : kTypeNames) {
    if (name == row.name) return row.dtype;
  }
  throw_error(ErrorCode::Unsupported, "element type ", name, " is not supported");
}

std::string name_of_dtype(DType dtype) {
  for (const TypeName& row : kTypeNames) {
    if (dtype == row.dtype) return row.name;
  }
  throw_error(ErrorCode::Unsupported, "safetensors files hold no elements of type ", to_string(dtype));
}

// Parses with a bound on the depth, and refuses a key that occurs twice (the parser itself keeps the last).
Json parse_json(std::string_view text) {
  std::set<std::string> names;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) throw_error(ErrorCode::Corrupt, "the header is nested too deeply");
    if (event == Json::parse_event_t::key && depth == 1 && !names.insert(value.get<std::string>()).second) {
      throw_error(ErrorCode::Corrupt, "the header has two tensors called '", value.get<std::string>(), "'");
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    throw_error(ErrorCode::Corrupt, "the header is not valid JSON: ", error.what());
  }
}

struct Entry {
  std::string name;
  DType dtype;
  Shape shape;
  uint64_t begin;
  uint64_t end;
};

uint64_t unsigned_number(const Json& value) {
  if (!value.is_number_unsigned())
    throw_error(ErrorCode::Corrupt, "expected a whole number, found ", value.type_name());
  return value.get<uint64_t>();
}

const Json& member(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) throw_error(ErrorCode::Corrupt, "the entry has no \"", key, "\"");
  return *found;
}

Entry parse_entry(const std::string& name, const Json& value) {
  if (!value.is_object()) throw_error(ErrorCode::Corrupt, "the entry is no object");
  const Json& dtype = member(value, "dtype");
  const Json& shape = member(value, "shape");
  const Json& offsets = member(value, "data_offsets");
  if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
    throw_error(ErrorCode::Corrupt, "dtype, shape or data_offsets has the wrong type");
  }
  Entry entry = {name,
                 dtype_of_name(dtype.get<std::string>()),
                 {},
                 unsigned_number(offsets[0]),
                 unsigned_number(offsets[1])};
  for (const Json& dim : shape) {
    const uint64_t size = unsigned_number(dim);
    if (size > INT64_MAX) throw_error(ErrorCode::Corrupt, "dimension ", size, " is too large");
    entry.shape.push_back(static_cast<int64_t>(size));
  }
  return entry;
}

std::map<std::string, std::string> parse_metadata(const Json& value) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) throw_error(ErrorCode::Corrupt, "__metadata__ is no object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) throw_error(ErrorCode::Corrupt, "__metadata__ '", key, "' is no string");
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// The format wants the tensors to cover the data without holes and overlaps.
void check_coverage(std::vector<const Entry*> entries, uint64_t data_size) {
  std::sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  uint64_t at = 0;
  for (const Entry* entry : entries) {
    if (entry->begin != at || entry->end < entry->begin) {
      throw_error(ErrorCode::Corrupt, "tensor '", entry->name, "' is at bytes ", entry->begin, " to ",
                  entry->end, " of the data, where byte ", at, " was to come next");
    }
    at = entry->end;
  }
  if (at != data_size) {
    throw_error(ErrorCode::Corrupt, "the header describes ", at, " bytes of data and the file has ",
                data_size, at > data_size ? "; it may be truncated" : "");
  }
}

File parse_file(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner) {
  uint64_t header_size = 0;
  if (bytes.size() < 8) throw_error(ErrorCode::Corrupt, "not a safetensors file: shorter than 8 bytes");
  std::memcpy(&header_size, bytes.data(), 8);
  if (header_size > kMaxHeaderBytes || header_size > bytes.size() - 8) {
    throw_error(ErrorCode::Corrupt, "not a safetensors file, or truncated: a header of ", header_size,
                " bytes is announced and ", bytes.size() - 8, " bytes follow");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_size);
  const Json header = parse_json(text);
  if (!header.is_object()) throw_error(ErrorCode::Corrupt, "the header is no JSON object");
  const auto data = bytes.subspan(8 + header_size);

  File file;
  std::vector<Entry> entries;
  for (const auto& item : header.items()) {
    const std::string& name = item.key();
    const Json& value = item.value();
    if (name == kMetadataKey) {
      file.metadata = parse_metadata(value);
      continue;
    }
    with_context("tensor '" + name + "'", [&] { entries.push_back(parse_entry(name, value)); });
  }
  std::vector<const Entry*> pointers;
  for (const Entry& entry : entries) pointers.push_back(&entry);
  check_coverage(pointers, data.size());
  for (const Entry& entry : entries) {
    with_context("tensor '" + entry.name + "'", [&] {
      const auto part = data.subspan(entry.begin, entry.end - entry.begin);
      file.tensors.emplace(entry.name, tensor_from_file_bytes(entry.dtype, entry.shape, owner, part));
    });
  }
  return file;
}

using Named = std::pair<const std::string, Tensor>;

std::vector<const Named*> in_file_order(const File& file) {
  std::vector<const Named*> order;
  for (const Named& named : file.tensors) order.push_back(&named);
  std::stable_sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
    return bit_width(a->second.dtype()) > bit_width(b->second.dtype());
  });
  return order;
}

}  // namespace

const Tensor& File::at(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw_error(ErrorCode::BadData, "there is no tensor '", name, "' in the file");
  return found->second;
}

File read(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  return parse(file->bytes(), file, path.string());
}

File parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, const std::string& name) {
  return with_context("reading '" + name + "'", [&] { return parse_file(bytes, owner); });
}

void write(const std::filesystem::path& path, const File& file) {
  const std::vector<const Named*> order = in_file_order(file);
  Json header = Json::object();  // sorts its keys
  if (!file.metadata.empty()) header[kMetadataKey] = file.metadata;
  uint64_t at = 0;
  for (const Named* named : order) {
    const auto& name = named->first;
    const auto& tensor = named->second;
    if (name == kMetadataKey)
      throw_error(ErrorCode::InvalidArgument, "a tensor may not be called ", kMetadataKey);
    with_context("tensor '" + name + "'", [&] {
      const uint64_t end = at + static_cast<uint64_t>(tensor.byte_size());
      header[name] = {
          {"dtype", name_of_dtype(tensor.dtype())}, {"shape", tensor.shape()}, {"data_offsets", {at, end}}};
      at = end;
    });
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  AtomicFile out(path);
  const uint64_t size = text.size();
  out.write(std::as_bytes(std::span(&size, 1)));
  out.write(text);
  for (const Named* named : order) {
    out.write(std::span(named->second.bytes(), static_cast<size_t>(named->second.byte_size())));
  }
  out.commit();
}

}  // namespace quern::safetensors
