// The socket on which workers report: who is listened to, and what a bad line does.
#include "launch/worker_events.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launch/starter.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// A connection that has not read the rules.
class Stranger {
 public:
  explicit Stranger(const std::string& name) : fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) ::_exit(9);
  }
  // False once the other end is closed.
  bool send(const std::string& text) {
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(fd_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<std::size_t>(n);
    }
    return true;
  }

 private:
  UniqueFd fd_;
};

struct Heard {
  std::vector<std::string> texts;  // of notes, in their order
  int status = -1;                 // wait status of the child
};

// What `listener` hears from a child that does `speak` and exits with what it gives.
Heard listen(EventListener& listener, const std::function<int()>& speak) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      ::_exit(speak());
    } catch (const std::exception&) {
      ::_exit(8);
    }
  }
  Heard heard;
  heard.status = listener.serve(child, [&heard](const Json& event) {
    if (event.value("event", "") == "note") heard.texts.push_back(event.at("text").get<std::string>());
  });
  return heard;
}

Json note(const std::string& text) { return {{"event", "note"}, {"text", text}}; }

TEST(BenchLink, ReportsArriveInOrder) {
  EventListener listener;
  const Heard heard = listen(listener, [&] {
    EventReporter reporter(listener.name());
    for (int i = 0; i < 3; ++i) reporter.send(note(std::to_string(i)));
    reporter.send(note(std::string(1 << 20, 'x')));  // far longer than one read
    return 0;
  });
  ASSERT_EQ(heard.texts.size(), 4U);
  EXPECT_EQ(heard.texts[2], "2");
  EXPECT_EQ(heard.texts[3], std::string(1 << 20, 'x'));
  EXPECT_EQ(heard.status, 0);
}

TEST(BenchLink, ALineThatIsNoReportIsPassedOver) {
  EventListener listener;
  const Heard heard = listen(listener, [&] {
    Stranger stranger(listener.name());
    const char* const bad[] = {"{\"event\":\"note\"}",  // no text
                               "{\"event\":\"note\",\"text\":7}",
                               "{\"event\":7}",
                               "[1,2]",
                               "7",
                               "null",
                               "\"event\"",
                               "{\"event\":",
                               "",
                               "\xff\xfe"};
    for (const char* const line : bad) stranger.send(std::string(line) + "\n");
    stranger.send(std::string(100'000, '[') + "\n");
    // Whole, but whoever copies it needs more stack than there is.
    stranger.send(R"({"event":"note","text":"deep","more":)" + std::string(200'000, '[') +
                  std::string(200'000, ']') + "}\n");
    EventReporter(listener.name()).send(note("heard"));
    return 0;
  });
  EXPECT_EQ(heard.texts, std::vector<std::string>{"heard"});
  EXPECT_EQ(heard.status, 0);
}

TEST(BenchLink, AnEndlessLineIsCutOff) {
  EventListener listener;
  const Heard heard = listen(listener, [&] {
    Stranger stranger(listener.name());
    const std::string block(1 << 20, 'x');
    constexpr int kMostBlocks = 1024;
    int blocks = 0;
    while (blocks < kMostBlocks && stranger.send(block)) ++blocks;
    EventReporter(listener.name()).send(note("heard"));
    return blocks < 64 ? 0 : 1;
  });
  EXPECT_EQ(heard.texts, std::vector<std::string>{"heard"});
  EXPECT_EQ(heard.status, 0);
}

TEST(BenchLink, OtherUsersAreNotListenedTo) {
  EventListener listener(::geteuid() + 1);  // to it this test is another user
  const Heard heard = listen(listener, [&] {
    for (int i = 0; i < 200; ++i) Stranger(listener.name()).send(note("forged").dump() + "\n");
    return 0;
  });
  EXPECT_EQ(heard.texts, std::vector<std::string>());
  EXPECT_EQ(heard.status, 0);
}

TEST(BenchLink, AWorkerDoesNotReportToAnotherUser) {
  const EventListener listener;
  EXPECT_NO_THROW(EventReporter(listener.name()));
  EXPECT_THROW(EventReporter(listener.name(), ::geteuid() + 1), SystemError);
}

TEST(BenchLink, TextThatIsNoUtf8IsReportedAllTheSame) {
  EventListener listener;
  const Heard heard = listen(listener, [&] {
    EventReporter(listener.name()).send(note("caf\xe9"));
    return 0;
  });
  EXPECT_EQ(heard.texts, std::vector<std::string>{"caf\xef\xbf\xbd"});
}

// A parent that waits for its own reader (a pager, Ctrl-S) reads nothing: progress is not waited for.
TEST(BenchLink, ProgressThatNobodyTakesIsDropped) {
  EventListener listener;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    EventReporter reporter(listener.name());
    for (int i = 0; i < 10'000; ++i) reporter.offer(note(std::to_string(i)));
    ::_exit(0);
  }
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(info.si_status, 0);
  std::vector<std::string> texts;  // once it reads again: what was taken, each line whole
  EXPECT_EQ(listener.serve(child, [&](const Json& event) { texts.push_back(event.at("text")); }), 0);
  ASSERT_GT(texts.size(), 10U);
  ASSERT_LT(texts.size(), 10'000U);
  for (std::size_t i = 0; i + 1 < texts.size(); ++i) EXPECT_EQ(texts[i], std::to_string(i));
}

TEST(BenchLink, ResultsThatNobodyTakesYetAreNotWaitedForAndComeWhole) {
  constexpr int kRows = 3000;
  EventListener listener;
  int posted[2] = {-1, -1};
  ASSERT_EQ(::pipe(posted), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    EventReporter reporter(listener.name());
    for (int i = 0; i < kRows; ++i) {
      reporter.post(note(std::to_string(i) + std::string(200, ' ')));
      reporter.offer({{"event", "progress"}});
    }
    (void)!::write(posted[1], "x", 1);
    reporter.flush();
    ::_exit(0);
  }
  ::close(posted[1]);
  char byte = 0;
  EXPECT_EQ(::read(posted[0], &byte, 1), 1) << "it waited for who reads";
  ::close(posted[0]);
  int next = 0;
  const int status = listener.serve(child, [&](const Json& event) {
    if (event.at("event") == "note") {
      EXPECT_EQ(std::stoi(event.at("text").get<std::string>()), next++);
    }
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(next, kRows);
}

TEST(BenchLink, WhatIsSentComesBehindProgressThatWasBegun) {
  EventListener listener;
  const Heard heard = listen(listener, [&] {
    EventReporter reporter(listener.name());
    reporter.offer(note(std::string(3 << 20, 'x')));  // more than is taken at once
    reporter.send(note("sent"));
    return 0;
  });
  ASSERT_EQ(heard.texts.size(), 2U);
  EXPECT_EQ(heard.texts[0], std::string(3 << 20, 'x'));
  EXPECT_EQ(heard.texts[1], "sent");
}

// What an mpirun first on the path is given: its words, and the secret in its environment.
struct GivenToMpirun {
  std::string words, secret, file;
};

GivenToMpirun start_under_mpirun(const std::filesystem::path& folder) {
  const auto mpirun = folder / "mpirun";
  std::ofstream(mpirun) << "#!/bin/sh\n"
                           "{ echo \"$*\"; echo \"$LOCKSTEP_SECRET\"; echo \"$LOCKSTEP_SECRET_FILE\"; } > "
                        << (folder / "given") << "\n";
  std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
  const Starter starter = start_workers({.program = {"/bin/true"}, .workers = 2, .with_mpi = true});
  int status = -1;
  EXPECT_EQ(::waitpid(starter.pid, &status, 0), starter.pid);
  EXPECT_EQ(status, 0);
  GivenToMpirun given;
  std::ifstream file(folder / "given");
  std::getline(file, given.words);
  std::getline(file, given.secret);
  std::getline(file, given.file);
  return given;
}

TEST(BenchStart, WorkersUnderMpirunMeetUnderANameThatNobodyGuesses) {
  std::string name = (std::filesystem::temp_directory_path() / "lockstep-mpirun-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  const std::string path = std::getenv("PATH"), outer(64, 'a');
  ::setenv("PATH", (name + ":" + path).c_str(), 1);
  ::setenv("LOCKSTEP_SECRET", outer.c_str(), 1);
  ::setenv("LOCKSTEP_SECRET_FILE", "/outer", 1);
  const GivenToMpirun first = start_under_mpirun(name), second = start_under_mpirun(name);
  ::setenv("PATH", path.c_str(), 1);
  ::unsetenv("LOCKSTEP_SECRET");
  ::unsetenv("LOCKSTEP_SECRET_FILE");
  std::filesystem::remove_all(name);
  EXPECT_EQ(first.secret.size(), 64U) << first.secret;
  EXPECT_EQ(first.secret.find_first_not_of("0123456789abcdef"), std::string::npos) << first.secret;
  EXPECT_NE(first.secret, second.secret);
  EXPECT_NE(first.secret, outer) << "an outer job's";
  EXPECT_EQ(first.file, "");
  // The command line is for everybody to read: the name, and not the secret.
  EXPECT_NE(first.words.find("-x LOCKSTEP_SECRET -n 2 /bin/true"), std::string::npos) << first.words;
  EXPECT_EQ(first.words.find(first.secret), std::string::npos) << first.words;
}

TEST(BenchStart, AKilledLauncherIsNamed) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGKILL);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(conclude("train", {}, Starter{}, status), 128 + SIGKILL);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("lockstep train: the launcher of the workers was killed by signal 9 (Killed)"),
            std::string::npos)
      << text;
}

TEST(BenchStart, AUsageErrorLeavesNoFlightRecorders) {
  for (const char* const kind : {"usage", "peer"}) {
    std::string folder = (std::filesystem::temp_directory_path() / "starter-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    std::ofstream(folder + "/flight-world-rank0.json").put('{');
    Starter starter;
    starter.dump_dir = folder;
    bool refused = false;
    ::testing::internal::CaptureStderr();
    try {
      conclude("train", {{.kind = kind, .text = "text"}}, starter, 3 << 8);
    } catch (const UsageError& error) {
      refused = true;
      EXPECT_STREQ(error.what(), "text");
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(refused, std::string(kind) == "usage");
    EXPECT_EQ(std::filesystem::exists(folder), std::string(kind) == "peer");
    EXPECT_EQ(said.find("flight recorder: " + folder) != std::string::npos, std::string(kind) == "peer");
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace lockstep
