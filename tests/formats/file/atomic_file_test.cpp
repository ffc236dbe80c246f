#include "formats/file/atomic_file.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern {
namespace {

using test::read_text;
using test::TempDir;

// With the temporary file named, and unnamed where the file system can.
class AtomicFileBothWays : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(AllowUnnamed, AtomicFileBothWays, testing::Bool());

TEST_P(AtomicFileBothWays, AppearsOnCommitAndNotBefore) {
  const TempDir dir;
  {
    AtomicFile file(dir / "out", GetParam());
    file.write("abc");
    EXPECT_FALSE(std::filesystem::exists(dir / "out"));
    file.commit();
  }
  EXPECT_EQ(read_text(dir / "out"), "abc");
  EXPECT_EQ(dir.names().size(), 1U);
}

TEST_P(AtomicFileBothWays, WithoutCommitTheOldFileStays) {
  const TempDir dir;
  test::write_text(dir / "out", "old");
  {
    AtomicFile file(dir / "out", GetParam());
    file.write(std::string(3 << 20, 'x'));
  }
  EXPECT_EQ(read_text(dir / "out"), "old");
  EXPECT_EQ(dir.names().size(), 1U);
}

TEST(AtomicFile, SmallAndLargePiecesKeepTheirOrder) {
  const TempDir dir;
  std::string expected;
  AtomicFile file(dir / "out");
  for (int i = 0; i < 40; ++i) {
    const std::string piece(static_cast<size_t>(i) * i * 2000 + 1, static_cast<char>('a' + i % 26));
    file.write(piece);
    expected += piece;
    EXPECT_EQ(file.size(), expected.size());
  }
  file.align(4096);
  expected.resize((expected.size() + 4095) / 4096 * 4096);
  file.write_at(1, std::as_bytes(std::span("HEAD", 4)));
  expected.replace(1, 4, "HEAD");
  file.write("tail");
  file.commit();
  EXPECT_TRUE(read_text(dir / "out") == expected + "tail");
}

TEST(AtomicFile, PermissionsFollowTheUmask) {
  const TempDir dir;
  const mode_t before = ::umask(0027);
  write_file(dir / "out", "x");
  ::umask(before);
  struct stat status = {};
  ASSERT_EQ(::stat((dir / "out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
}

TEST(AtomicFile, ALinkIsFollowed) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "deep");
  std::filesystem::create_symlink("deep/real", dir / "link");
  write_file(dir / "link", "x");
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(read_text(dir / "deep/real"), "x");
}

TEST(AtomicFile, TargetsThatAreNoFilesAreRefused) {
  const TempDir dir;
  EXPECT_QUERN_ERROR(AtomicFile(dir.path()), ErrorCode::Io, dir.path().string(), "folder");
  EXPECT_QUERN_ERROR(AtomicFile("/dev/null"), ErrorCode::Io, "/dev/null", "not a regular file");
  EXPECT_QUERN_ERROR(AtomicFile(dir / "no/such/folder"), ErrorCode::Io, "no/such/folder", "No such file");
  EXPECT_QUERN_ERROR(AtomicFile(dir.path().string() + "/"), ErrorCode::Io);
}

TEST(AtomicFile, AFailedWriteLeavesNothing) {
  const TempDir dir;
  test::write_text(dir / "out", "old");
  const auto previous = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit = {};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  struct rlimit low = limit;
  low.rlim_cur = 1 << 20;
  ::setrlimit(RLIMIT_FSIZE, &low);
  EXPECT_QUERN_ERROR(write_file(dir / "out", std::string(4 << 20, 'x')), ErrorCode::Io, "out", "too large");
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, previous);
  EXPECT_EQ(read_text(dir / "out"), "old");
  EXPECT_EQ(dir.names().size(), 1U);
}

// In a child with its own file systems, on one of 256 KiB. Exit status 77: the system does not allow that.
int write_to_a_full_disk(const std::filesystem::path& mount_point) {
  // As root a mount name space is enough; anyone else becomes root of a name space of users first.
  if (::unshare(CLONE_NEWNS) != 0) {
    const std::string map = "0 " + std::to_string(::getuid()) + " 1";
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
    std::ofstream("/proc/self/uid_map") << map;
  }
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
  if (::mount("none", mount_point.c_str(), "tmpfs", 0, "size=256k") != 0) return 77;
  try {
    write_file(mount_point / "out", std::string(4 << 20, 'x'));
  } catch (const Error& error) {
    const bool told = std::string(error.what()).find("No space left") != std::string::npos;
    return told && error.code() == ErrorCode::Io && std::filesystem::is_empty(mount_point) ? 0 : 1;
  }
  return 2;
}

TEST(AtomicFile, AFullDiskIsAnErrorAndLeavesNothing) {
  const TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(write_to_a_full_disk(dir.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "mounting a small file system is not allowed here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The child writes half a file and is then interrupted.
void expect_clean_end_on(int signal_number, bool allow_unnamed) {
  const TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    remove_unfinished_files_on_signals();
    AtomicFile file(dir / "out", allow_unnamed);
    file.write(std::string(3 << 20, 'x'));
    ::raise(signal_number);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal_number);
  EXPECT_TRUE(dir.names().empty());
}

TEST_P(AtomicFileBothWays, AnInterruptLeavesNothing) {
  expect_clean_end_on(SIGINT, GetParam());
  expect_clean_end_on(SIGTERM, GetParam());
}

TEST(AtomicFile, EvenAKilledProcessLeavesNothingWhereUnnamedFilesExist) {
  const TempDir dir;
  {
    const AtomicFile file(dir / "out");
    if (!dir.names().empty()) GTEST_SKIP() << "the file system has no unnamed files";
  }
  expect_clean_end_on(SIGKILL, true);
}

}  // namespace
}  // namespace quern
