// The launcher's parts, each by itself, and its library interface.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "launch/cores.h"
#include "launch/dumps.h"
#include "launch/first_failure.h"
#include "launch/harness.h"
#include "launch/job.h"
#include "launch/worker_environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/identity.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {
namespace {

// `physical` cores with two hardware threads each, in the order usable_cores gives.
std::vector<Core> threaded(int physical) {
  std::vector<Core> cores;
  for (int i = 0; i < 2 * physical; ++i)
    cores.push_back({.cpu = i / 2 + (i % 2) * physical, .package = 0, .physical = i / 2});
  return cores;
}

TEST(Cores, SharesAreDisjointAndUseEveryCore) {
  for (int workers = 1; workers <= 16; ++workers) {
    std::set<int> seen;
    std::size_t total = 0;
    for (const std::vector<int>& share : divide_cores(threaded(8), workers)) {
      EXPECT_GE(share.size(), 1U);
      total += share.size();
      seen.insert(share.begin(), share.end());
    }
    EXPECT_EQ(total, 16U);
    EXPECT_EQ(seen.size(), 16U);
  }
}

TEST(Cores, AWorkerHasWholePhysicalCores) {
  EXPECT_EQ(divide_cores(threaded(8), 4)[0], (std::vector<int>{0, 8, 1, 9}));
}

TEST(Cores, MoreWorkersThanCoresAreNotPinned) {
  const auto shares = divide_cores(threaded(1), 3);
  ASSERT_EQ(shares.size(), 3U);
  for (const std::vector<int>& share : shares) EXPECT_TRUE(share.empty());
}

WorkerEnd end_of(int rank, double seconds, int exit_code, int signal = 0) {
  WorkerEnd end;
  end.rank = rank;
  end.seconds = seconds;
  end.exit_code = exit_code;
  end.signal = signal;
  return end;
}

TEST(FirstFailure, IsTheFirstSeen) {
  EXPECT_EQ(first_failure({end_of(1, 1.0, 0), end_of(3, 2.0, 2), end_of(0, 2.01, 1)}), 3);
  EXPECT_EQ(first_failure({end_of(1, 1.0, 0)}), std::nullopt);
}

TEST(FirstFailure, PrefersAHardSignalWithinTheWindow) {
  EXPECT_EQ(first_failure({end_of(0, 1.0, 1), end_of(2, 1.05, 0, SIGKILL)}), 2);
  EXPECT_EQ(first_failure({end_of(0, 1.0, 1), end_of(2, 1.2, 0, SIGKILL)}), 0);
  EXPECT_EQ(first_failure({end_of(0, 1.0, 1), end_of(2, 1.05, 0, SIGABRT)}), 0);
  EXPECT_EQ(first_failure({end_of(1, 1.0, 0, SIGSEGV), end_of(2, 1.05, 0, SIGKILL)}), 1);
}

TEST(FirstFailure, IsNeverOneThatWasStopped) {
  WorkerEnd stopped = end_of(0, 1.0, 0, SIGKILL);
  stopped.stopped = true;
  EXPECT_EQ(first_failure({stopped, end_of(1, 1.01, 4)}), 1);
}

WorkerEnd victim_of(int cause, int rank, double seconds) {
  WorkerEnd end = end_of(rank, seconds, 1);
  end.blames = {cause};
  return end;
}

// However the deaths are seen: rank 2 threw, the others failed because it was gone.
TEST(FirstFailure, IsTheOneThatNobodyElsesErrorExplains) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    std::vector<WorkerEnd> ends;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const double seconds = 1 + static_cast<double>(i);
      ends.push_back(order[i] == 2 ? end_of(2, seconds, 3) : victim_of(2, order[i], seconds));
    }
    EXPECT_EQ(first_failure(ends), 2);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(FirstFailure, FollowsTheChain) {
  // 0 blames 1, which blames 3, which blames nobody; 2 says nothing and nobody blames it.
  EXPECT_EQ(first_failure({victim_of(1, 0, 1), end_of(2, 1.5, 1), victim_of(3, 1, 2), end_of(3, 3, 1)}), 3);
  // A signal that nobody speaks of does not outweigh what all say.
  EXPECT_EQ(first_failure({victim_of(1, 0, 1), end_of(2, 1.05, 0, SIGSEGV), end_of(1, 1.06, 1)}), 1);
}

TEST(FirstFailure, WhoIsBlamedButDidNotFailIsNot) {
  EXPECT_EQ(first_failure({victim_of(1, 0, 1), end_of(1, 2, 0)}), 0);
  EXPECT_EQ(first_failure({victim_of(1, 0, 1)}), 0);
  // They blame each other, or themselves: then the first seen.
  EXPECT_EQ(first_failure({victim_of(1, 0, 1), victim_of(0, 1, 2)}), 0);
  EXPECT_EQ(first_failure({victim_of(1, 1, 1), end_of(0, 2, 1)}), 1);
}

// A large core takes longer to write than the others have to settle.
TEST(FirstFailure, MayHaveBeenToldToStopWhileItDied) {
  WorkerEnd dying = end_of(1, 4.0, 0, SIGABRT);
  dying.stopped = true;
  EXPECT_EQ(first_failure({victim_of(1, 0, 1.0), dying}), 1);
  EXPECT_EQ(first_failure({end_of(0, 1.0, 1), dying}), 0);  // nobody says that it had died
  dying.signal = SIGTERM;
  EXPECT_EQ(first_failure({victim_of(1, 0, 1.0), dying}), 0);
}

// By this name a launcher finds what its workers wrote.
// Connections that go out would take one of those between the launcher's look and the worker's.
TEST(FreePort, IsNoneThatTheSystemGivesAway) {
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  if (first <= 20480) GTEST_SKIP() << "the system gives away ports from " << first << " on";
  for (int i = 0; i < 20; ++i) {
    const int port = free_port();
    EXPECT_GE(port, 1024);
    EXPECT_LT(port, first);
  }
}

TEST(WorkerEnvironment, WorkersCallTheJobAsTheLauncherThinks) {
  Start start;
  start.job = job_on_one_machine({.program = {"true"}, .workers = 2});
  start.restart = 3;
  const auto same = [&] {
    for (const std::string& variable : worker_environment({.program = {"true"}, .workers = 2}, start, 1)) {
      const auto at = variable.find('=');
      ::setenv(variable.substr(0, at).c_str(), variable.substr(at + 1).c_str(), 1);
    }
    return Identity::from_environment().job == name_for_workers(start);
  };
  EXPECT_EXIT(::_exit(same() ? 0 : 1), ::testing::ExitedWithCode(0), "");  // its environment is its own
}

TEST(Streams, ChoicesAreTorchruns) {
  const StreamChoice choice = StreamChoice::parse("--tee", "0:1,2:3");
  EXPECT_TRUE(choice.has(0, Stream::out));
  EXPECT_FALSE(choice.has(0, Stream::err));
  EXPECT_FALSE(choice.has(1, Stream::out));
  EXPECT_TRUE(choice.has(2, Stream::err));
  EXPECT_EQ(choice.largest_rank(), 2);
  EXPECT_TRUE(StreamChoice::parse("--tee", "2").has(9, Stream::err));
  EXPECT_FALSE(StreamChoice::parse("--tee", "2").has(9, Stream::out));
  EXPECT_FALSE(StreamChoice::parse("--tee", "0").any());
  for (const char* bad : {"", "4", "-1", "x", "0:", ":1", "0:1,0:2", "0:1,,1:1", "0:9", "0:1 "})
    EXPECT_THROW(StreamChoice::parse("--tee", bad), UsageError) << bad;
}

// What launch() writes to its standard output for the given console modes.
std::string output_of(Console console, std::optional<Console> rank0) {
  const UniqueFd file(::memfd_create("output", MFD_CLOEXEC));
  LaunchOptions options;
  options.program = {"sh", "-c", "echo out $RANK $EXTRA"};
  options.workers = 2;
  options.console = console;
  options.console_of_rank0 = rank0;
  options.stdout_fd = file.get();
  options.environment = {{"EXTRA", "more"}};
  EXPECT_TRUE(launch(options).ok());
  std::string text(4096, '\0');
  text.resize(static_cast<std::size_t>(::pread(file.get(), text.data(), text.size(), 0)));
  return text;
}

TEST(Library, ConsoleModes) {
  EXPECT_EQ(output_of(Console::none, Console::raw), "out 0 more\n");
  EXPECT_EQ(output_of(Console::none, Console::prefixed), "[rank 0] out 0 more\n");
  EXPECT_EQ(output_of(Console::errors, std::nullopt), "");
  EXPECT_EQ(output_of(Console::prefixed, Console::none), "[rank 1] out 1 more\n");
}

TEST(Library, TheReportSaysHowEachWorkerEnded) {
  LaunchOptions options;
  options.program = {"sh", "-c", "echo words; [ $RANK = 1 ] && kill -BUS $$; exec sleep 60"};
  options.workers = 3;
  options.console = Console::none;
  options.settle = std::chrono::milliseconds(50);
  const LaunchReport report = launch(options);
  ASSERT_EQ(report.first_failed, 1);
  EXPECT_EQ(report.exit_status(), 1);
  ASSERT_EQ(report.workers.size(), 3U);
  EXPECT_EQ(report.workers[1].signal, SIGBUS);
  EXPECT_FALSE(report.workers[1].stopped);
  EXPECT_EQ(report.workers[0].signal, SIGTERM);
  EXPECT_TRUE(report.workers[0].stopped);
  EXPECT_EQ(report.last_lines, std::vector<std::string>{"words"});
  EXPECT_NE(to_json(report).find("\"signal\":\"SIGBUS\""), std::string::npos) << to_json(report);
}

TEST(Library, LeavesSignalsAsTheyWere) {
  sigset_t before;
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  LaunchOptions options;
  options.program = {"true"};
  EXPECT_TRUE(launch(options).ok());
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal)
    EXPECT_EQ(::sigismember(&before, signal), ::sigismember(&after, signal)) << signal;
}

// What failed jobs leave where nobody named a folder does not pile up; what is somebody's own stays.
TEST(Dumps, OldOnesGoOthersStay) {
  namespace fs = std::filesystem;
  const test::TempFolder temporary;
  const fs::path root = temporary.path();
  const auto make = [&](const std::string& name, const std::string& file, int age_s) {
    fs::create_directory(root / name);
    if (!file.empty()) std::ofstream(root / name / file) << "{}";
    fs::last_write_time(root / name, fs::file_time_type::clock::now() - std::chrono::seconds(age_s));
  };
  const auto numbered = [](std::size_t i, const char* end) {
    char text[64];
    std::snprintf(text, sizeof text, "lockstep-%012zx-%s", i, end);
    return std::string(text);
  };
  for (std::size_t i = 0; i < kKeptDumps + 3; ++i)
    make(numbered(i, i % 2 == 0 ? "attempt-0" : "dumps"), "flight-world-rank0.json",
         static_cast<int>(10 * i));
  make(numbered(500, "dumps"), "", 9000);            // nothing in it yet
  make(numbered(501, "dumps"), "thesis.tex", 9000);  // somebody's
  make("lockstep-mine", "flight-world-rank0.json", 9000);
  fs::create_directory_symlink(root / "lockstep-mine", root / numbered(502, "dumps"));
  LaunchReport report;
  find_dumps((root / numbered(0, "attempt-0")).string(), "", report);
  EXPECT_EQ(report.dumps.size(), 1U);
  for (std::size_t i = 0; i < kKeptDumps + 3; ++i)
    EXPECT_EQ(fs::exists(root / numbered(i, i % 2 == 0 ? "attempt-0" : "dumps")), i < kKeptDumps) << i;
  for (const std::string& name :
       {numbered(500, "dumps"), numbered(501, "dumps"), numbered(502, "dumps"), std::string("lockstep-mine")})
    EXPECT_TRUE(fs::exists(root / name)) << name;
  EXPECT_TRUE(fs::exists(root / "lockstep-mine" / "flight-world-rank0.json"));
}

// LOCKSTEP_DUMP_DIR may be a folder in which others write, too.
TEST(Dumps, WhatOthersPutThereIsNotWaitedFor) {
  namespace fs = std::filesystem;
  const test::TempFolder folder;
  const fs::path root = folder.path();
  const std::string dump = R"({"job": "job.0", "world_rank": 0, "gone": [2], "summary": ["rank 2 is gone"]})";
  std::ofstream(root / "flight-world-rank0.json") << dump;
  std::ofstream(root / "elsewhere") << dump;
  ASSERT_EQ(::mkfifo((root / "flight-world-rank1.json").c_str(), 0666), 0);  // whose writer never comes
  fs::create_symlink(root / "elsewhere", root / "flight-world-rank2.json");
  fs::create_directory(root / "flight-world-rank3.json");
  const auto look = [&] {
    LaunchReport report;
    report.first_failed = 1;
    find_dumps(root.string(), "job.0", report);
    const auto blames = find_blames(root.string(), "job.0");
    clear_stop(root.string(), "job.0", Dumps::too);
    const bool good = report.dumps == std::vector<std::string>{"flight-world-rank0.json"} &&
                      report.dump_summary == std::vector<std::string>{"rank 2 is gone"} &&
                      blames == std::map<int, std::vector<int>>{{0, {2}}};
    ::_exit(good ? 0 : 1);
  };
  EXPECT_EXIT((::alarm(20), look()), ::testing::ExitedWithCode(0), "");
  EXPECT_FALSE(fs::exists(root / "flight-world-rank0.json"));
  EXPECT_TRUE(fs::exists(root / "flight-world-rank2.json"));
}

TEST(Library, RefusesWhatCannotBe) {
  LaunchOptions options;
  EXPECT_THROW(launch(options), UsageError);
  options.program = {"true"};
  options.workers = 0;
  EXPECT_THROW(launch(options), UsageError);
  options.workers = kMostWorkers + 1;
  EXPECT_THROW(launch(options), UsageError);
}

}  // namespace
}  // namespace lockstep::launcher
