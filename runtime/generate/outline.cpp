#include "runtime/generate/outline.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "ir/error.h"
#include "runtime/prefix/prefix_cache.h"

namespace quern::runtime {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// What stands behind the mark of a point; empty where the line has none.
std::string_view behind_mark(std::string_view line) {
  line = trimmed(line);
  if (line.starts_with("\u2022")) return trimmed(line.substr(3));
  if (line.starts_with("- ") || line.starts_with("* ") || line.starts_with("+ "))
    return trimmed(line.substr(2));
  const size_t digits = std::min(line.find_first_not_of("0123456789"), line.size());
  if (digits == 0 || digits > 3 || digits == line.size()) return {};
  if (line[digits] != '.' && line[digits] != ')') return {};
  // "1.5 million" is no first point.
  const std::string_view rest = line.substr(digits + 1);
  if (rest.empty() || (rest.front() >= '0' && rest.front() <= '9')) return {};
  return trimmed(rest);
}

std::string_view without_decoration(std::string_view point) {
  if (point.ends_with(":")) point.remove_suffix(1);
  if (point.starts_with("**")) {
    const size_t end = point.find("**", 2);
    // "**Point**", but not "**Point** and more".
    if (end != std::string_view::npos && trimmed(point.substr(end + 2)).empty())
      point = point.substr(2, end - 2);
  }
  point = trimmed(point);
  if (point.ends_with(":")) point.remove_suffix(1);
  return trimmed(point);
}

// Brings the beginning of all prompts into the cache.
void compute_beginning(Session& session, std::span<const int64_t> tokens, PrefixCache& cache) {
  Sequence sequence = cache.take(tokens);
  const std::span<const int64_t> rest = tokens.subspan(static_cast<size_t>(sequence.size()));
  const SequenceStep step{.sequence = &sequence, .tokens = rest, .logits = LogitsFor::None};
  while (true) {
    try {
      session.run({&step, 1});
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::OutOfMemory || !cache.evict()) throw;
    }
  }
  cache.keep(sequence, sequence.size());
}

}  // namespace

std::vector<std::string> outline_points(std::string_view text, size_t most) {
  std::vector<std::string> points;
  while (!text.empty() && points.size() < most) {
    const size_t end = text.find('\n');
    const std::string_view point = without_decoration(behind_mark(text.substr(0, end)));
    if (!point.empty()) points.emplace_back(point);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return points;
}

int64_t common_beginning(std::span<const std::vector<int64_t>> prompts) {
  if (prompts.empty()) return 0;
  size_t most = prompts.front().size();
  for (const std::vector<int64_t>& prompt : prompts.subspan(1)) {
    most = std::min(most, prompt.size());
    const auto first = prompts.front().begin();
    most = static_cast<size_t>(
        std::mismatch(first, first + static_cast<int64_t>(most), prompt.begin()).first - first);
  }
  return static_cast<int64_t>(most);
}

ForkedOutput generate_forks(Session& session, std::span<const std::vector<int64_t>> prompts,
                            GenerateOptions options, const GenerateCallback& callback) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<PrefixCache> own;
  if (options.prefix_cache == nullptr) options.prefix_cache = &own.emplace(session);
  ForkedOutput forked;
  forked.prefix_tokens = common_beginning(prompts);
  const int64_t context = session.options().context;
  // What is longer than the context is for generate() to refuse, or to shift.
  if (forked.prefix_tokens > 0 && (context == 0 || forked.prefix_tokens <= context)) {
    const auto size = static_cast<size_t>(forked.prefix_tokens);
    compute_beginning(session, std::span(prompts.front()).first(size), *options.prefix_cache);
  }
  const std::chrono::duration<double> beginning = std::chrono::steady_clock::now() - start;
  forked.output = generate(session, prompts, options, callback);
  GenerateTiming& timing = forked.output.timing;
  timing.prefill_seconds += beginning.count();
  timing.seconds += beginning.count();
  if (timing.first_token_seconds > 0) timing.first_token_seconds += beginning.count();
  return forked;
}

}  // namespace quern::runtime
