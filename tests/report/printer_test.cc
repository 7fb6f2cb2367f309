#include "report/printer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep {
namespace {

// A pipe of one page.
struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    reader.reset(ends[0]);
    ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
    writer = ::fdopen(ends[1], "w");
  }
  ~Pipe() { std::fclose(writer); }
  std::string take() const {
    std::string text(8192, '\0');
    const ssize_t got = ::read(reader.get(), text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

  UniqueFd reader;
  std::FILE* writer = nullptr;
};

TEST(Printer, WhatNobodyReadsIsDroppedOnceToldToStop) {
  const Pipe pipe;
  Printer printer;
  int asked = 0;
  printer.give_up_when([&] { return ++asked > 2; });  // told while it waits
  const std::string page(4096, 'x');
  printer.print(pipe.writer, page);
  EXPECT_EQ(asked, 0);
  EXPECT_FALSE(takes_text(::fileno(pipe.writer)));
  printer.print(pipe.writer, "lost\n");
  EXPECT_GT(asked, 2);
  printer.print(pipe.writer, "lost too\n");
  // It reads again.
  EXPECT_EQ(pipe.take(), page);
  printer.print(pipe.writer, "heard\n");
  EXPECT_EQ(pipe.take(), "heard\n");
}

TEST(Printer, ASignalThatIsHeldBackIsPending) {
  sigset_t term, before;
  ::sigemptyset(&term);
  ::sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &term, &before);
  EXPECT_FALSE(stop_is_pending());
  ::raise(SIGTERM);
  EXPECT_TRUE(stop_is_pending());
  int signal = 0;
  ::sigwait(&term, &signal);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_FALSE(stop_is_pending());
}

}  // namespace
}  // namespace lockstep
