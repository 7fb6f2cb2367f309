// Writers that are killed, and disks that are full.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "checkpoint/temp_folder.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

// What a writer tells its parent: a file of this step's checkpoint is in the hidden folder, or write() has
// returned.
struct Event {
  std::int64_t step = 0;
  bool published = false;
};
constexpr int kEventsOfACheckpoint = 4;  // three files, and the end

// Writes checkpoints until it is killed, each one twice, so that replacing is interrupted as well. After
// event number `hold`, counted from 1, it stands still.
[[noreturn]] void write_forever(const fs::path& folder, std::int64_t first, int told, int hold) {
  int events = 0;
  const auto tell = [&](Event event) {
    if (::write(told, &event, sizeof event) != sizeof event) ::_exit(1);
    while (++events == hold) ::pause();
  };
  for (int i = 0;; ++i) {
    const std::int64_t step = first + i / 2;
    CheckpointStore(folder, 2).write(step, [&](const fs::path& staging) {
      write_file(staging / "model.safetensors", std::string(100'000, static_cast<char>('a' + step % 26)));
      tell({step, false});
      write_file(staging / "optimizer.safetensors", std::string(200'000, static_cast<char>('A' + step % 26)));
      tell({step, false});
      write_file(staging / "state.json", std::to_string(step));
      tell({step, false});
    });
    tell({step, true});
  }
}

TEST(StoreCrash, KilledAtAnyInstantTheLastGoodOneIsThere) {
  constexpr int kRounds = 24;
  const TempFolder temp;
  RandomStream random(11, 0, 0);
  std::int64_t promised = -1;  // the newest step that write() returned for
  int interrupted = 0;
  for (int round = 0; round < kRounds; ++round) {
    // From the first file to the end of the third checkpoint. Half of the writers stand still there; the
    // others go on while the signal is on its way, so that it comes at any instant.
    const int last = 1 + static_cast<int>(random.below(3 * kEventsOfACheckpoint));
    const bool held = round % 2 == 0;
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_forever(temp.path(), promised + 1, pipe[1], held ? last : -1);
    ::close(pipe[1]);
    Event event;
    const auto next = [&] { return ::read(pipe[0], &event, sizeof event) == sizeof event; };
    for (int i = 0; i < last; ++i) {
      ASSERT_TRUE(next()) << "the writer failed by itself";
      if (event.published) promised = event.step;
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself";
    if (held && !event.published) {
      ++interrupted;
      ASSERT_TRUE(fs::exists(temp.path() / ".staging")) << "round " << round;
    }
    while (next())
      if (event.published) promised = event.step;
    ::close(pipe[0]);

    const auto found = CheckpointStore(temp.path()).list();
    for (const auto& folder : found) ASSERT_NO_THROW(verify_checkpoint(folder)) << "round " << round;
    if (promised >= 0) {
      ASSERT_FALSE(found.empty());
      ASSERT_GE(checkpoint_step(found.back()), promised) << "round " << round;
    }
  }
  EXPECT_GT(promised, kRounds / 4) << "too few checkpoints were written for this to mean anything";
  EXPECT_GT(interrupted, kRounds / 4) << "too few writers were killed while writing";
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
