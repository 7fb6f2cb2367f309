// Writers that are killed, and disks that are full.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "checkpoint/temp_folder.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

void write_one(const fs::path& folder, std::int64_t step) {
  CheckpointStore(folder, 2).write(step, [&](const fs::path& staging) {
    write_file(staging / "model.safetensors", std::string(100'000, static_cast<char>('a' + step % 26)));
    write_file(staging / "optimizer.safetensors", std::string(200'000, static_cast<char>('A' + step % 26)));
    write_file(staging / "state.json", std::to_string(step));
  });
}

// Writes checkpoints until it is killed, each one twice, so that replacing is interrupted as well; tells of
// each one that write() has returned for.
[[noreturn]] void write_forever(const fs::path& folder, std::int64_t step, int told) {
  for (int i = 0;; ++i) {
    write_one(folder, step + i / 2);
    const std::int64_t done = step + i / 2;
    if (::write(told, &done, sizeof done) != sizeof done) ::_exit(1);
  }
}

TEST(StoreCrash, KilledAtAnyInstantTheLastGoodOneIsThere) {
  const TempFolder temp;
  RandomStream random(11, 0, 0);
  const auto begin = Clock::now();
  write_one(temp.path() / "trial", 0);
  const auto one_write = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
  fs::remove_all(temp.path() / "trial");
  std::int64_t promised = -1;  // the newest step that write() returned for
  int interrupted = 0;
  int rounds = 0;
  // Killed at moments from the start to the third checkpoint. A slow disk gets fewer rounds.
  const auto deadline = Deadline::after(std::chrono::seconds(5));
  for (; rounds < 50 && (rounds < 20 || !deadline.passed()); ++rounds) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_forever(temp.path(), promised + 1, pipe[1]);
    ::close(pipe[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(3 * one_write.count() + 1)));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself";
    for (std::int64_t step = 0; ::read(pipe[0], &step, sizeof step) == sizeof step;) promised = step;
    ::close(pipe[0]);

    const auto found = CheckpointStore(temp.path()).list();
    if (fs::exists(temp.path() / ".staging")) ++interrupted;
    for (const auto& folder : found) ASSERT_NO_THROW(verify_checkpoint(folder)) << "round " << rounds;
    if (promised >= 0) {
      ASSERT_FALSE(found.empty());
      ASSERT_GE(checkpoint_step(found.back()), promised) << "round " << rounds;
    }
  }
  EXPECT_GT(promised, rounds / 8) << "too few checkpoints were written for this to mean anything";
  EXPECT_GT(interrupted, rounds / 4) << "too few writers were killed while writing";
  CheckpointStore(temp.path()).write(promised + 100, [](const fs::path& f) { write_file(f / "x", "y"); });
  for (const auto& entry : fs::directory_iterator(temp.path())) {
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
  }
}

// In a child, because the limit is the process's. What it prints comes back.
std::string with_file_limit(rlim_t bytes, const std::function<void()>& body) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, bytes};
    std::string said = ::setrlimit(RLIMIT_FSIZE, &limit) == 0 ? "nothing" : "no limit could be set";
    try {
      body();
    } catch (const SystemError& error) {
      said = error.what();
    }
    const ssize_t put = ::write(pipe[1], said.data(), said.size());
    ::_exit(put == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  ::close(pipe[1]);
  std::string said(4096, '\0');
  const ssize_t got = ::read(pipe[0], said.data(), said.size());
  said.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  ::close(pipe[0]);
  ::waitpid(child, nullptr, 0);
  return said;
}

TEST(StoreCrash, FullDiskIsOneLineAndLosesNothing) {
  const TempFolder temp;
  CheckpointStore store(temp.path(), 2);
  const auto first = store.write(1, [](const fs::path& f) { write_file(f / "model.safetensors", "small"); });
  const auto said = with_file_limit(64 << 10, [&] {
    store.write(2, [](const fs::path& f) {
      write_file(f / "state.json", "small");
      write_file(f / "model.safetensors", std::string(100'000, 'x'));
    });
  });
  EXPECT_NE(said.find("cannot write "), std::string::npos) << said;
  EXPECT_NE(said.find("/model.safetensors: File too large"), std::string::npos) << said;
  EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  EXPECT_EQ(store.list(), std::vector<fs::path>{first});
  EXPECT_NO_THROW(verify_checkpoint(first));
  EXPECT_EQ(std::distance(fs::directory_iterator(temp.path()), fs::directory_iterator()), 1)
      << "something was left";
}

TEST(StoreCrash, NoRoomForTheManifestEither) {
  const TempFolder temp;
  CheckpointStore store(temp.path(), 2);
  const auto said = with_file_limit(
      100, [&] { store.write(2, [](const fs::path& f) { write_file(f / "state.json", "small"); }); });
  EXPECT_NE(said.find("/manifest.json: File too large"), std::string::npos) << said;
  EXPECT_TRUE(fs::is_empty(temp.path()));
}

TEST(StoreCrash, AFileThatCouldNotBeFinishedIsRemoved) {
  const TempFolder temp;
  const auto file = temp.path() / "big";
  EXPECT_NE(
      with_file_limit(1000, [&] { write_file(file, std::string(2000, 'x')); }).find("big: File too large"),
      std::string::npos);
  EXPECT_FALSE(fs::exists(file));
}

}  // namespace
}  // namespace lockstep
