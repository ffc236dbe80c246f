#include <signal.h>

#include <string>
#include <vector>

#include "cli/command.h"
#include "formats/file/atomic_file.h"

int main(int argc, char** argv) {
  // A reader that went away is an error of write(), so that unfinished files are removed before the end.
  ::signal(SIGPIPE, SIG_IGN);
  // A file-size limit likewise: write() then says EFBIG.
  ::signal(SIGXFSZ, SIG_IGN);
  quern::remove_unfinished_files_on_signals();
  return static_cast<int>(quern::cli::run_program(std::vector<std::string>(argv + 1, argv + argc)));
}
