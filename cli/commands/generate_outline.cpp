#include "cli/commands/generate_outline.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/chat.h"
#include "cli/commands/generate_prompt.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/prefix_cache.h"
#include "formats/tokenizer/utf8.h"
#include "runtime/generate/outline.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostPoints = 64;

// The two requests of Skeleton-of-Thought (Ning et al. 2024, appendix A), in our words. What differs from
// point to point comes last, so that all else is computed once.
std::string outline_request(const std::string& question) {
  return concat(
      "Give only the outline of an answer to the question below, not the answer itself. The outline is a "
      "numbered list of 3 to 10 points (1., 2., 3., and so on). A point has 3 to 5 words and is no whole "
      "sentence.\n\nQuestion: ",
      question, "\n\nOutline:");
}

std::string point_request(const std::string& question, const std::string& outline, size_t number) {
  return concat(
      "An answer to the question below is written point by point, after an outline. You write one "
      "point and nothing else.\n\nQuestion: ",
      question, "\n\nOutline:\n", outline,
      "\nWrite the text of a single point, in one or two short sentences, and stop before the next "
      "point. Your point is number ",
      number, ".");
}

struct Outline {
  std::vector<std::string> points;
  std::optional<runtime::GenerateOutput> generated;  // nothing where the points were given
  std::string text;                                  // of `generated`, with its first mark
};

std::string numbered(const std::vector<std::string>& points) {
  std::string text;
  for (size_t i = 0; i < points.size(); ++i) text += concat(i + 1, ". ", points[i], "\n");
  return text;
}

// A line a point; marks of lists are taken off.
std::vector<std::string> read_points(const std::string& path) {
  std::vector<std::string> points;
  std::istringstream lines(read_input(path));
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> marked = runtime::outline_points(line);
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    points.push_back(!marked.empty() ? marked.front()
                                     : line.substr(first, line.find_last_not_of(" \t\r") - first + 1));
  }
  if (points.empty())
    throw_error(ErrorCode::BadData, "'", one_line(path), "' holds no point: one a line was expected");
  if (points.size() > kMostPoints)
    throw_error(ErrorCode::BadData, "'", one_line(path), "' holds ", points.size(), " points; at most ",
                kMostPoints, " can be written side by side");
  return points;
}

// Whether points are asked for in the model's chat template, rather than gone on with as plain text.
bool is_chat(const Arguments& arguments) {
  return !arguments.given("outline-file") || wants_chat(arguments);
}

Outline ask_for_outline(GenerateJob& job, runtime::Session& session, const std::string& question) {
  const std::string prompt = chat_prompt(job.arguments, job.model, outline_request(question)) + "1.";
  const std::vector<std::vector<int64_t>> prompts = {
      tokenizer_of(job.model).encode(prompt, {.add_special_tokens = false})};
  runtime::GenerateOptions options = job.options;
  options.stop.clear();
  Outline outline;
  outline.generated = runtime::generate(session, prompts, options);
  outline.text = "1." + outline.generated->results.front().text;
  outline.points = runtime::outline_points(outline.text, kMostPoints);
  if (!outline.points.empty() || status_of(*outline.generated) == ExitStatus::Interrupted) return outline;
  throw_error(ErrorCode::BadData, "the model gave no outline: '", one_line(outline.text.substr(0, 80)),
              "' has no point; ask without --outline, or give the points by --outline-file");
}

// What stands before each point's text, and what the model goes on from.
struct Parts {
  std::vector<std::string> headings;
  std::vector<std::vector<int64_t>> prompts;
};

Parts parts_of(const GenerateJob& job, const std::string& question, const std::vector<std::string>& points) {
  const tokenizer::Tokenizer& tokenizer = tokenizer_of(job.model);
  const bool chat = is_chat(job.arguments);
  const bool special = !chat && !job.arguments.flag("no-special");
  const std::string outline = numbered(points);
  Parts parts;
  for (size_t i = 0; i < points.size(); ++i) {
    parts.headings.push_back(chat ? concat(i + 1, ". ", points[i]) : points[i]);
    const std::string before =
        chat ? chat_prompt(job.arguments, job.model, point_request(question, outline, i + 1))
             : question + "\n";
    parts.prompts.push_back(
        tokenizer.encode(before + parts.headings.back(), {.add_special_tokens = special}));
  }
  return parts;
}

// Prints the points in their order, as far as they are there: of the first unfinished one what comes, of
// those behind it nothing yet.
class OrderedPrinter {
 public:
  OrderedPrinter(Console& console, const std::vector<std::string>& headings)
      : console_(console), headings_(headings), held_(headings.size()), finished_(headings.size()) {}

  void begin() { console_.print(headings_.front()); }
  void operator()(const runtime::GenerateEvent& event) {
    held_[event.prompt] += event.text;
    finished_[event.prompt] = event.finished ? 1 : 0;
    while (next_ < held_.size()) {
      console_.print(held_[next_]);
      held_[next_].clear();
      if (finished_[next_] == 0) break;
      ++next_;
      console_.print(next_ < held_.size() ? "\n\n" + headings_[next_] : "\n");
    }
    console_.flush();
  }

 private:
  Console& console_;
  const std::vector<std::string>& headings_;
  std::vector<std::string> held_;
  std::vector<char> finished_;
  size_t next_ = 0;
};

ordered_json outline_json(const Outline& outline) {
  ordered_json object = {{"points", outline.points}};
  const bool asked = outline.generated.has_value();
  object["text"] = asked ? ordered_json(tokenizer::to_valid_utf8(outline.text)) : ordered_json();
  object["ids"] = asked ? ordered_json(outline.generated->results.front().ids) : ordered_json();
  object["finish_reason"] =
      asked ? ordered_json(runtime::to_string(outline.generated->results.front().finish)) : ordered_json();
  return object;
}

ordered_json timing_json(const GenerateJob& job, const Outline& outline,
                         const runtime::ForkedOutput& forked) {
  const runtime::GenerateTiming& timing = forked.output.timing;
  return {{"load_seconds", job.model.seconds},
          {"outline_seconds", outline.generated ? outline.generated->timing.seconds : 0.0},
          {"points_seconds", timing.seconds},
          {"prompt_tokens", timing.prompt_tokens},
          {"prefix_tokens", forked.prefix_tokens},
          {"cached_tokens", timing.cached_tokens},
          {"generated_tokens", timing.generated_tokens},
          {"tokens_per_second", throughput(timing)}};
}

ordered_json to_json(const GenerateJob& job, const std::string& question, const Outline& outline,
                     const Parts& parts, const runtime::ForkedOutput& forked) {
  ordered_json object = {{"prompt", tokenizer::to_valid_utf8(question)}, {"outline", outline_json(outline)}};
  object["results"] = ordered_json::array();
  std::string text;
  for (size_t i = 0; i < parts.headings.size(); ++i) {
    const runtime::GenerateResult& result = forked.output.results[i];
    ordered_json point = {{"point", i},
                          {"heading", parts.headings[i]},
                          {"prompt_ids", parts.prompts[i]},
                          {"ids", result.ids},
                          {"text", tokenizer::to_valid_utf8(result.text)},
                          {"finish_reason", runtime::to_string(result.finish)}};
    point["stop"] = result.stop.empty() ? ordered_json() : ordered_json(result.stop);
    object["results"].push_back(std::move(point));
    text += (i > 0 ? "\n\n" : "") + parts.headings[i] + result.text;
  }
  object["text"] = tokenizer::to_valid_utf8(text);
  object["sampling"] = sampling_json(job.sampling.options);
  object["timing"] = timing_json(job, outline, forked);
  return object;
}

std::string summary(const Outline& outline, const runtime::ForkedOutput& forked) {
  const runtime::GenerateTiming& timing = forked.output.timing;
  std::string text;
  if (outline.generated)
    text = concat("outline in ", format_seconds(outline.generated->timing.seconds), "; ");
  return text + concat(outline.points.size(),
                       " points side by side: ", format_grouped(timing.generated_tokens), " tokens in ",
                       format_seconds(timing.seconds), ", ", format_grouped(std::llround(throughput(timing))),
                       " tokens/s; their common ", format_grouped(forked.prefix_tokens),
                       " tokens were computed once");
}

void check(const Arguments& arguments) {
  for (const char* other : {"prompts", "instances", "ids", "messages"}) {
    if (arguments.given(other))
      throw UsageError(
          concat("--outline and --", other, " exclude one another: it asks one question, as text"));
  }
}

}  // namespace

void declare_outline_options(OptionSet& options) {
  options.section("Outlines")
      .flag("outline",
            "the prompt is a question: ask the model for the points of an answer, then let it write all of "
            "them "
            "side by side (Skeleton-of-Thought); for models that follow instructions; -n is of each point")
      .text(
          "outline-file", "FILE",
          "the points, one a line, instead of asking for them; without --chat each goes on as a line behind "
          "the prompt");
}

bool wants_outline(const Arguments& arguments) {
  return arguments.flag("outline") || arguments.given("outline-file");
}

ExitStatus generate_outline(GenerateJob& job) {
  check(job.arguments);
  const std::string question =
      read_prompt_text(job.arguments, "the question by -p TEXT or --prompt-file FILE");
  tokenizer_of(job.model);
  runtime::Session session(job.model.program, job.session);
  const auto cache = open_prefix_cache(job.arguments, job.model, session, job.console);
  job.options.prefix_cache = cache.get();
  const std::optional<std::string> file = job.arguments.text("outline-file");
  const Outline outline =
      file ? Outline{.points = read_points(*file)} : ask_for_outline(job, session, question);
  if (outline.points.empty()) return ExitStatus::Interrupted;
  const Parts parts = parts_of(job, question, outline.points);
  OrderedPrinter printer(job.console, parts.headings);
  runtime::GenerateCallback callback;
  if (!job.console.json()) {
    if (!is_chat(job.arguments) && !job.arguments.flag("no-echo")) job.console.print(question + "\n\n");
    printer.begin();
    callback = std::ref(printer);
  }
  const runtime::ForkedOutput forked = runtime::generate_forks(session, parts.prompts, job.options, callback);
  if (!job.console.json()) {
    job.console.note(summary(outline, forked));
    note_optional(job, session, forked.output);
    return status_of(forked.output);
  }
  ordered_json object = to_json(job, question, outline, parts, forked);
  object["prefix_cache"] = prefix_json(cache->statistics());
  add_optional_json(object, job, session, forked.output);
  job.console.print_json(object);
  return status_of(forked.output);
}

}  // namespace quern::cli
