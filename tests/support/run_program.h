// Runs a program as a shell would, and collects what it says.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"

namespace quern::test {

struct ProgramRun {
  std::string standard_input;
  std::vector<std::string> environment;         // "NAME=value", on top of this process's
  std::filesystem::path folder;                 // to run in; empty: here
  std::filesystem::path standard_output;        // written to; empty: collected
  std::optional<uint64_t> largest_file;         // RLIMIT_FSIZE, bytes
  std::optional<uint64_t> most_memory;          // RLIMIT_DATA, bytes; mapped files do not count
  std::chrono::milliseconds interrupt_after{};  // then SIGINT; 0: never
  std::chrono::seconds limit{120};              // then it is killed, and status says so
};

struct ProgramResult {
  int status = 0;  // as a shell has it: 128 + the signal that ended it
  std::string out;
  std::string err;
  int64_t peak_bytes = 0;  // resident, with the pages of mapped files
};

inline int open_or_throw(const std::filesystem::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (fd < 0) throw std::runtime_error("cannot open " + path.string());
  return fd;
}

[[noreturn]] inline void become_program(std::vector<std::string> words, const ProgramRun& how,
                                        const int (&fds)[3]) {
  for (int i = 0; i < 3; ++i) ::dup2(fds[i], i);
  if (!how.folder.empty() && ::chdir(how.folder.c_str()) != 0) ::_exit(126);
  for (const std::string& variable : how.environment) ::putenv(const_cast<char*>(variable.c_str()));
  const auto limit = [](int resource, uint64_t bytes) {
    const rlimit value{bytes, bytes};
    ::setrlimit(static_cast<__rlimit_resource>(resource), &value);
  };
  if (how.largest_file) limit(RLIMIT_FSIZE, *how.largest_file);
#if !defined(__SANITIZE_ADDRESS__)  // whose shadow takes terabytes of addresses
  if (how.most_memory) limit(RLIMIT_DATA, *how.most_memory);
#endif
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

// The first word is the path of the program.
inline ProgramResult run_program(const std::vector<std::string>& words, const ProgramRun& how = {}) {
  const TempDir files;
  write_text(files / "in", how.standard_input);
  const std::filesystem::path out = how.standard_output.empty() ? files / "out" : how.standard_output;
  const int fds[3] = {open_or_throw(files / "in", O_RDONLY), open_or_throw(out, O_WRONLY | O_CREAT),
                      open_or_throw(files / "err", O_WRONLY | O_CREAT)};
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) become_program(words, how, fds);
  for (const int fd : fds) ::close(fd);

  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  bool interrupted = how.interrupt_after.count() == 0;
  int wait_status = 0;
  rusage usage = {};
  while (::wait4(child, &wait_status, WNOHANG, &usage) == 0) {
    const auto passed = Clock::now() - start;
    if (!interrupted && passed > how.interrupt_after) {
      ::kill(child, SIGINT);
      interrupted = true;
    }
    if (passed > how.limit) ::kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ProgramResult result;
  result.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
  result.status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  if (how.standard_output.empty()) result.out = read_text(out);
  result.err = read_text(files / "err");
  return result;
}

}  // namespace quern::test
