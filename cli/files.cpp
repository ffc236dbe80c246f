#include "cli/files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <unistd.h>

#include "cli/console.h"
#include "formats/file/mapped_file.h"
#include "ir/error.h"

namespace quern::cli {
namespace {

std::string read_standard_input() {
  std::string text;
  char buffer[65536];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, stdin)) text.append(buffer, count);
  if (std::ferror(stdin) != 0) {
    throw_error(ErrorCode::Io, "cannot read standard input: ", std::strerror(errno));
  }
  return text;
}

// Pipes and devices cannot be mapped.
std::string read_stream(const std::filesystem::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr)
    throw_error(ErrorCode::Io, "cannot open '", path.string(), "': ", std::strerror(errno));
  std::string text;
  char buffer[65536];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, count);
  const int error = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (error != 0) throw_error(ErrorCode::Io, "cannot read '", path.string(), "': ", std::strerror(error));
  return text;
}

}  // namespace

std::string read_input(const std::filesystem::path& path) {
  if (path == "-") return read_standard_input();
  std::error_code ignored;
  if (std::filesystem::is_fifo(path, ignored) || std::filesystem::is_character_file(path, ignored)) {
    return read_stream(path);
  }
  const auto file = MappedFile::open(path);
  return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
}

void check_outputs(const Arguments& arguments) {
  for (const char* option : {"output", "report"}) {
    if (!arguments.given(option)) continue;
    const std::filesystem::path path = arguments.text_of(option);
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(path, ignored);
    if (folder) throw_error(ErrorCode::Io, "cannot create '", one_line(path.string()), "': it is a folder");
    if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) continue;
    const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
    if (::access(parent.c_str(), W_OK) != 0) {
      throw_error(ErrorCode::Io, "cannot create '", one_line(path.string()), "': ", std::strerror(errno));
    }
  }
}

std::optional<std::string> prompt_text(const Arguments& arguments) {
  if (arguments.given("prompt") && arguments.given("prompt-file")) {
    throw UsageError("--prompt and --prompt-file are both given; one text is enough");
  }
  if (arguments.given("prompt-file")) return read_input(arguments.text_of("prompt-file"));
  return arguments.text("prompt");
}

std::vector<int64_t> parse_ids(const std::string& text, const std::string& origin) {
  std::vector<int64_t> ids;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(", \t\r\n", at), text.size());
    if (end > at) {
      const std::string word = text.substr(at, end - at);
      const std::optional<int64_t> id = parse_integer(word);
      if (!id || *id < 0)
        throw UsageError(origin + " takes token ids separated by commas; '" + word + "' is none");
      ids.push_back(*id);
    }
    at = end + 1;
  }
  return ids;
}

std::string join_ids(const std::vector<int64_t>& ids) {
  std::string text;
  for (const int64_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

}  // namespace quern::cli
