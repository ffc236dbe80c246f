#include "cli/progress.h"

#include <algorithm>
#include <cstdio>

#include "cli/format.h"
#include "cli/terminal.h"

namespace quern::cli {
namespace {

using Seconds = std::chrono::duration<double>;

// A bar that appears for a blink disturbs more than it tells.
constexpr Seconds kFirst{0.3};
constexpr Seconds kRedraw{0.1};
constexpr Seconds kLine{10};
constexpr int kBarWidth = 24;

void to_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

std::string cut(const std::string& text, int width) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    size_t length = 1;
    while (i + length < text.size() && (static_cast<unsigned char>(text[i + length]) & 0xC0) == 0x80)
      ++length;
    if (static_cast<int>(display_width(result)) + 1 > width) break;
    result += text.substr(i, length);
    i += length;
  }
  return result;
}

}  // namespace

Progress::Progress(Console& console, std::string label, int64_t total, std::string unit)
    : silent_(console.quiet()),
      bar_(is_terminal(Stream::Err)),
      label_(std::move(label)),
      total_(total),
      unit_(std::move(unit)) {}

Progress::~Progress() {
  finish();
}

void Progress::update(int64_t done) {
  done_ = done;
  draw();
}

void Progress::describe(std::string what) {
  what_ = one_line(what);
  draw();
}

std::string Progress::numbers() const {
  // Work of unequal steps is told in shares of it.
  if (unit_ == kPerMille && total_ == 1000) return format_percent(static_cast<double>(done_) / 1000, 1);
  std::string text =
      total_ > 0 ? std::to_string(done_) + "/" + std::to_string(total_) : std::to_string(done_);
  if (!unit_.empty()) text += " " + unit_;
  return text;
}

std::string Progress::time_left() const {
  if (total_ <= 0 || done_ <= 0 || done_ >= total_) return "";
  const double passed = Seconds(Clock::now() - start_).count();
  // The first steps warm up, and say nothing of the others.
  const bool tells = passed >= 1 && (done_ >= std::max<int64_t>(2, total_ / 50) || passed >= 30);
  if (!tells) return "";
  return ", " + format_seconds(passed / static_cast<double>(done_) * static_cast<double>(total_ - done_)) +
         " left";
}

void Progress::draw() {
  if (silent_) return;
  const Clock::time_point now = Clock::now();
  const Seconds wait = !bar_ ? kLine : drawn_ ? kRedraw : kFirst;
  if (now - last_ < wait) return;
  last_ = now;
  if (!bar_) return print_line();
  std::string line = label_ + " ";
  if (total_ > 0) {
    const int64_t full = std::clamp<int64_t>(done_ * kBarWidth / total_, 0, kBarWidth);
    line += "[";
    for (int64_t i = 0; i < kBarWidth; ++i) line += i < full ? "#" : ".";
    line += "] " + std::to_string(std::min<int64_t>(done_ * 100 / total_, 100)) + "% ";
  }
  line += numbers() + time_left();
  if (!what_.empty()) line += "  " + what_;
  to_stderr("\r" + cut(line, terminal_width(Stream::Err) - 1) + "\033[K");
  drawn_ = true;
}

void Progress::print_line() {
  std::string line = label_ + ": " + numbers() + time_left();
  if (!what_.empty()) line += " (" + what_ + ")";
  to_stderr(line + "\n");
}

void Progress::finish() {
  if (drawn_) to_stderr("\r\033[K");
  drawn_ = false;
  silent_ = true;
}

}  // namespace quern::cli
