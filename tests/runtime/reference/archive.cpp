#include "tests/runtime/reference/archive.h"

#include <zlib.h>

#include <stdexcept>
#include <utility>

namespace quern::test {
namespace {

std::string inflate_file(const std::filesystem::path& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error("cannot open " + path.string());
  std::string content;
  char buffer[1 << 16];
  int count = 0;
  while ((count = gzread(file, buffer, sizeof buffer)) > 0)
    content.append(buffer, static_cast<size_t>(count));
  gzclose(file);
  if (count < 0) throw std::runtime_error("cannot inflate " + path.string());
  return content;
}

}  // namespace

// ustar: a header block of 512 bytes (name at 0, size in octal at 124, type at 156, prefix at 345), then the
// data padded to whole blocks. GNU's long names come as an entry of type 'L' before the file's own.
std::map<std::string, std::string> read_tar_gz(const std::filesystem::path& path) {
  const std::string tar = inflate_file(path);
  std::map<std::string, std::string> files;
  std::string long_name;
  for (size_t at = 0; at + 512 <= tar.size() && tar[at] != '\0';) {
    const auto field = [&](size_t offset, size_t length) {
      const std::string text = tar.substr(at + offset, length);
      return text.substr(0, text.find('\0'));
    };
    const size_t size = std::stoull("0" + field(124, 12), nullptr, 8);
    const char type = tar[at + 156];
    const std::string prefix = field(257, 5) == "ustar" ? field(345, 155) : "";
    std::string name = prefix.empty() ? field(0, 100) : prefix + "/" + field(0, 100);
    if (!long_name.empty()) name = std::exchange(long_name, {});
    std::string content = tar.substr(at + 512, size);
    at += 512 + (size + 511) / 512 * 512;
    if (type == 'L') {
      long_name = content.substr(0, content.find('\0'));
    } else if (type == '0' || type == '\0') {
      files[name] = std::move(content);
    }
  }
  return files;
}

}  // namespace quern::test
