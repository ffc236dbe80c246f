// Decodes an artifact with libquern_runtime alone: app ARTIFACT PROMPT
#include <iostream>
#include <vector>

#include "formats/artifact/artifact.h"
#include "formats/tokenizer/tokenizer.h"
#include "runtime/quern.h"

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  const auto artifact = quern::artifact::Artifact::open(argv[1]);
  const auto tokenizer_json = artifact.attachment(quern::artifact::kTokenizerJson);
  if (!tokenizer_json) return 3;  // it was converted without one
  const auto tokenizer = quern::tokenizer::Tokenizer::from_bytes(*tokenizer_json);
  quern::runtime::Session session(quern::runtime::Program::compile(artifact.graph()));
  quern::runtime::Sequence sequence = session.new_sequence();
  std::vector<int64_t> next = tokenizer.encode(argv[2]);
  std::vector<int64_t> text = next;
  for (int i = 0; i < 16; ++i) {
    next = {quern::runtime::argmax(session.run(sequence, next))};
    text.push_back(next[0]);
  }
  std::cout << tokenizer.decode(text) << "\n";
} catch (const quern::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
