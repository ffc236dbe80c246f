// How far a long step is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/console.h"

namespace quern::cli {

// Unit of progress whose total is 1000, shown as percent.
inline constexpr const char* kPerMille = "per mille";

// On a terminal a bar that is redrawn in place and goes away at the end; elsewhere a plain line now and then;
// nothing at all where the console is quiet. Everything goes to standard error. Not thread-safe.
class Progress {
 public:
  // `unit` follows the numbers: "windows". A total of 0: not known.
  Progress(Console& console, std::string label, int64_t total = 0, std::string unit = "");
  ~Progress();  // as finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total(int64_t total) { total_ = total; }
  void update(int64_t done);
  void advance(int64_t by = 1) { update(done_ + by); }
  // What is worked on now, after the numbers: a tensor, a pass.
  void describe(std::string what);
  // Takes the bar away; further updates do nothing.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void draw();
  void print_line();
  std::string numbers() const;
  std::string time_left() const;

  bool silent_;
  bool bar_;
  std::string label_;
  int64_t total_;
  std::string unit_;
  std::string what_;
  int64_t done_ = 0;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace quern::cli
