// A writer that is killed after each single system call that changes the disk, one after the other: what a
// SIGKILL "at any instant" can leave, in full.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "checkpoint/temp_folder.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

constexpr int kNoPtrace = 77;

bool changes_the_disk(std::uint64_t call) {
  switch (call) {
#ifdef SYS_open
    case SYS_open:
    case SYS_mkdir:
    case SYS_rename:
    case SYS_rmdir:
    case SYS_unlink:
#endif
    case SYS_openat:
    case SYS_write:
    case SYS_mkdirat:
    case SYS_renameat:
    case SYS_renameat2:
    case SYS_unlinkat: return true;
    default: return false;
  }
}

void write_one(const fs::path& folder, std::int64_t step) {
  CheckpointStore(folder, 2).write(step, [&](const fs::path& staging) {
    write_file(staging / "model.safetensors", std::string(1000, static_cast<char>('a' + step)));
    write_file(staging / "state.json", std::to_string(step));
  });
}

// A new checkpoint, which pushes out the oldest, and the same step once more.
[[noreturn]] void write_twice(const fs::path& folder) {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kNoPtrace);
  ::raise(SIGSTOP);
  write_one(folder, 3);
  write_one(folder, 3);
  ::_exit(0);
}

// Kills the writer after its n-th change, counted from 0. The exit status when it ended before that; -1 when
// it was killed.
int kill_after_change(const fs::path& folder, int n) {
  const pid_t child = ::fork();
  if (child == 0) write_twice(folder);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSTOPPED(status))
    ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  bool changing = false;
  for (int changes = 0; WIFSTOPPED(status);) {
    if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      __ptrace_syscall_info info{};
      ::ptrace(PTRACE_GET_SYSCALL_INFO, child, reinterpret_cast<void*>(sizeof info), &info);
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        changing = changes_the_disk(info.entry.nr);
      } else if (changing && changes++ == n) {
        ::kill(child, SIGKILL);
        ::waitpid(child, &status, 0);
        return -1;
      }
    }
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(StoreKill, AfterEveryChangeOfTheDiskAllThatIsPublishedIsWhole) {
  const TempFolder temp;
  const auto before = temp.path() / "before";
  for (const int step : {1, 2}) write_one(before, step);

  int kills = 0;
  bool unpublished = false;
  bool published = false;
  for (;; ++kills) {
    const auto folder = temp.path() / "run";
    fs::remove_all(folder);
    fs::copy(before, folder, fs::copy_options::recursive);
    const int status = kill_after_change(folder, kills);
    if (status == kNoPtrace)
      GTEST_SKIP() << "this machine lets no process trace its child: " << std::strerror(EPERM);
    if (status == 0) break;
    ASSERT_EQ(status, -1) << "the writer failed by itself";

    const auto found = CheckpointStore(folder).list();
    ASSERT_GE(found.size(), 2u) << "after change " << kills;
    for (const auto& checkpoint : found)
      ASSERT_NO_THROW(verify_checkpoint(checkpoint)) << "after change " << kills;
    const auto newest = checkpoint_step(found.back());
    ASSERT_TRUE(newest == 2 || newest == 3);
    ASSERT_FALSE(published && newest == 2) << "a published checkpoint went away, after change " << kills;
    (newest == 2 ? unpublished : published) = true;
    if (kills % 5 == 0) {  // what is left does not hinder the next writer, which removes it
      write_one(folder, 4);
      for (const auto& entry : fs::directory_iterator(folder)) {
        ASSERT_NE(entry.path().filename().string().front(), '.') << entry.path();
      }
    }
  }
  EXPECT_GT(kills, 20);
  EXPECT_TRUE(unpublished);
  EXPECT_TRUE(published);
}

}  // namespace
}  // namespace lockstep
