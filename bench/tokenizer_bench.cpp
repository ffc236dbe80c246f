// How fast a tokenizer encodes and decodes: tokenizer_bench TOKENIZER TEXT-FILE [SECONDS]
// Processor time of one thread, best of the repetitions; MB are 10^6 bytes of text.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "formats/tokenizer/tokenizer.h"
#include "ir/error.h"

namespace {

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The shortest time that `work` took, repeated for about `seconds`.
template <class Work>
double best_time(double seconds, Work&& work) {
  double best = 1e30;
  const double start = thread_seconds();
  do {
    const double before = thread_seconds();
    work();
    best = std::min(best, thread_seconds() - before);
  } while (thread_seconds() - start < seconds);
  return best;
}

int run(const char* tokenizer_path, const char* text_path, double seconds) {
  using quern::tokenizer::Tokenizer;
  const double before = thread_seconds();
  const Tokenizer tokenizer = Tokenizer::from_file(tokenizer_path);
  const double loading = thread_seconds() - before;
  std::ifstream in(text_path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const double megabytes = static_cast<double>(text.size()) * 1e-6;
  std::vector<int64_t> ids;
  const double first = best_time(0, [&] { ids = tokenizer.encode(text); });
  const double encoding = best_time(seconds, [&] { ids = tokenizer.encode(text); });
  const double decoding = best_time(seconds, [&] { tokenizer.decode(ids); });
  std::printf("%s: load %.3f s; %.2f MB, %zu tokens: encode %.1f MB/s (first time %.1f), decode %.1f MB/s\n",
              tokenizer_path, loading, megabytes, ids.size(), megabytes / encoding, megabytes / first,
              megabytes / decoding);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER TEXT-FILE [SECONDS]\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argc > 3 ? std::atof(argv[3]) : 1.0);
  } catch (const quern::Error& error) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", error.what());
    return 1;
  }
}
