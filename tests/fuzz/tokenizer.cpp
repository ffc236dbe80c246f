// Tokenizer files of every form; then a text is encoded and decoded.
#include "formats/tokenizer/tokenizer.h"

#include <algorithm>
#include <string_view>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::string_view kText = "The 3 naïve cafés; don't, 日本語 \xF0\x9F\x8E\x89\xFF\r\n\t  <s>x</s>";

}  // namespace

void quern::fuzz::run(std::span<const std::byte> input) {
  const std::string_view bytes(reinterpret_cast<const char*>(input.data()), input.size());
  const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::from_bytes(bytes);
  const std::vector<int64_t> ids = tokenizer.encode(kText);
  tokenizer.decode(ids, {.skip_special_tokens = true});
  tokenizer::StreamDecoder decoder(tokenizer);
  for (const int64_t id : ids) decoder.push(id);
  decoder.finish();
  // The file itself as the text: what occurs in it has to do with what it describes.
  tokenizer.encode(bytes.substr(0, 4096));
  for (int64_t id = -1; id < std::min<int64_t>(tokenizer.vocab_size() + 1, 300); ++id) {
    tokenizer.token_of(id);
    tokenizer.decode(std::vector<int64_t>{id, 0, id});
  }
}
