#include "calibrate/dataset.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "formats/file/checksum.h"
#include "formats/file/mapped_file.h"

namespace quern::calibrate {
namespace {

using nlohmann::json;

// The offset of the first byte that is not well-formed UTF-8 (Unicode 3.9, table 3-7), if there is one.
std::optional<size_t> first_malformed(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                          : lead >= 0xE0 && lead <= 0xEF ? 3
                          : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                         : 0;
    if (length == 0) return i;
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(i + 1) < low || byte(i + 1) > high) return i;
    for (size_t k = 2; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return i;
    }
    i += length;
  }
  return {};
}

void check_utf8(std::string_view text, const std::string& source) {
  if (const auto offset = first_malformed(text)) {
    throw_error(ErrorCode::BadData, "'", source, "' is not UTF-8: byte ", *offset, " is ",
                static_cast<int>(static_cast<unsigned char>(text[*offset])),
                "; convert it first (iconv -t UTF-8), or give token ids as JSON lines");
  }
}

std::vector<int64_t> encode(std::string_view text, const std::string& where, const DatasetOptions& options) {
  if (options.tokenizer == nullptr) {
    throw_error(ErrorCode::BadData, where,
                " is text, and the model has no tokenizer; give --tokenizer "
                "tokenizer.json, or token ids as JSON lines ({\"ids\": [1, 2, 3]})");
  }
  return options.tokenizer->encode(text, {.add_special_tokens = options.add_special_tokens});
}

void find_opening(Document& document, const DatasetOptions& options) {
  if (options.tokenizer == nullptr || !options.add_special_tokens) return;
  const std::vector<int64_t> opening = options.tokenizer->opening();
  const bool is_there = opening.size() <= document.ids.size() &&
                        std::equal(opening.begin(), opening.end(), document.ids.begin());
  document.opening = is_there ? static_cast<int64_t>(opening.size()) : 0;
}

std::vector<int64_t> read_ids(const json& list, const std::string& where) {
  const auto refuse = [&] {
    throw_error(ErrorCode::BadData, where, ": \"ids\" must be a list of whole numbers from 0");
  };
  if (!list.is_array()) refuse();
  std::vector<int64_t> ids;
  ids.reserve(list.size());
  for (const json& id : list) {
    if (!id.is_number_integer()) refuse();
    ids.push_back(id.get<int64_t>());
    if (ids.back() < 0) refuse();
  }
  return ids;
}

Document read_document(std::string_view line, const std::string& where, const DatasetOptions& options) {
  const json object = json::parse(line.begin(), line.end(), nullptr, false);
  if (!object.is_object()) {
    throw_error(ErrorCode::BadData, where,
                " is no JSON object; expected {\"text\": \"...\"} or {\"ids\": [...]} on each line");
  }
  Document document;
  if (const auto label = object.find("label"); label != object.end()) {
    if (!label->is_number_integer() || label->get<int64_t>() < 0) {
      throw_error(ErrorCode::BadData, where, ": \"label\" must be a whole number from 0, not ",
                  label->dump());
    }
    document.label = label->get<int64_t>();
  }
  for (const char* key : {"ids", "input_ids"}) {
    if (const auto ids = object.find(key); ids != object.end()) {
      document.ids = read_ids(*ids, where);
      find_opening(document, options);
      return document;
    }
  }
  const auto text = object.find("text");
  if (text == object.end() || !text->is_string()) {
    throw_error(ErrorCode::BadData, where, " has neither \"text\" (a string) nor \"ids\" (a list)");
  }
  document.ids = encode(text->get_ref<const std::string&>(), where, options);
  find_opening(document, options);
  return document;
}

void check_labels(const TokenData& data) {
  for (const Document& document : data.documents) {
    if (document.label.has_value() != data.labelled()) {
      throw_error(ErrorCode::BadData, data.where(document), document.label ? " has" : " has no",
                  " \"label\", unlike the lines before; give all lines one or none");
    }
  }
}

bool is_blank(std::string_view line) {
  return std::all_of(line.begin(), line.end(), [](unsigned char c) { return std::isspace(c) != 0; });
}

}  // namespace

int64_t TokenData::tokens() const {
  int64_t count = 0;
  for (const Document& document : documents) count += static_cast<int64_t>(document.ids.size());
  return count;
}

void TokenData::check_ids(int64_t vocabulary) const {
  if (vocabulary <= 0) return;
  for (const Document& document : documents) {
    for (const int64_t id : document.ids) {
      if (id >= vocabulary) {
        throw_error(ErrorCode::BadData, where(document), " has the token id ", id,
                    ", outside the model's vocabulary of ", vocabulary,
                    "; it was made with another tokenizer than the model's");
      }
    }
  }
}

std::string TokenData::where(const Document& document) const {
  if (document.line == 0) return "'" + source + "'";
  return concat("line ", document.line, " of '", source, "'");
}

TokenData TokenData::parse_text(std::string_view text, std::string source, const DatasetOptions& options) {
  TokenData data{.source = std::move(source), .is_text = true};
  check_utf8(text, data.source);
  if (is_blank(text))
    throw_error(ErrorCode::BadData, "'", data.source, "' is empty: there is nothing to score");
  data.documents.push_back({.ids = encode(text, "'" + data.source + "'", options)});
  find_opening(data.documents.back(), options);
  return data;
}

TokenData TokenData::parse_lines(std::string_view lines, std::string source, const DatasetOptions& options) {
  TokenData data{.source = std::move(source)};
  check_utf8(lines, data.source);
  int64_t number = 0;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string_view line = lines.substr(at, end - at);
    at = end + 1;
    ++number;
    if (is_blank(line)) continue;
    const std::string where = concat("line ", number, " of '", data.source, "'");
    Document document = read_document(line, where, options);
    document.line = number;
    data.documents.push_back(std::move(document));
    if (options.samples > 0 && static_cast<int64_t>(data.documents.size()) == options.samples) break;
  }
  if (data.documents.empty())
    throw_error(ErrorCode::BadData, "'", data.source, "' is empty: there is nothing to score");
  check_labels(data);
  return data;
}

TokenData TokenData::load(const std::filesystem::path& path, const DatasetOptions& options) {
  const auto file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  const std::string extension = path.extension();
  const bool lines = extension == ".jsonl" || extension == ".ndjson";
  TokenData data = lines ? parse_lines(text, path, options) : parse_text(text, path, options);
  data.digest = sha256_of_file(path);
  return data;
}

}  // namespace quern::calibrate
