// Reading the peers' memory where the kernel allows it, where it does not, and where a peer is gone in the
// middle. A filter of the kernel's (seccomp) on process_vm_readv refuses it, or kills whoever tries.
#include <signal.h>

#include "comm/worker_process.h"

namespace lockstep::testing {
namespace {

std::vector<Worker> start_pages(int size, const std::string& how, std::vector<std::string> more = {}) {
  const std::string job = new_job();
  std::vector<Worker> workers;
  for (int r = 0; r < size; ++r)
    workers.emplace_back(
        WorkerOptions{.arguments = {"pages", how}, .variables = variables_of(job, r, size, more)});
  return workers;
}

// Every worker's one line, a success.
void expect_lines(std::vector<Worker>& workers, const std::vector<std::string>& parts) {
  for (Worker& worker : workers) {
    const std::string text = worker.finish();
    EXPECT_EQ(worker.status(), 0) << text;
    EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
  }
}

// Whether two workers may read each other's memory here at all, or why not.
std::string refused_here() {
  auto two = start_pages(2, "allowed");
  const std::string text = two[0].finish();
  const std::size_t at = text.find("can't run here");
  return at == std::string::npos ? "" : text.substr(at, text.find(';', at) - at);
}

#define LOCKSTEP_NEEDS_PAGES() \
  if (const std::string why = refused_here(); !why.empty()) GTEST_SKIP() << why

TEST(Pages, RunWhereTheKernelAllowsIt) {
  LOCKSTEP_NEEDS_PAGES();
  auto three = start_pages(3, "allowed");
  for (Worker& worker : three) expect_ok(worker, "world 6, part 6, chosen 6");
  auto asked = start_pages(2, "allowed", {"LOCKSTEP_ALGORITHM=pages"});
  for (Worker& worker : asked) expect_ok(worker, "world 3, part 3, chosen 3");
  Worker alone({.arguments = {"pages", "refused:0"}, .variables = variables_of(new_job(), 0, 1)});
  expect_ok(alone, "world 1, part 1, chosen 1");
}

// One rank that may not read is enough: nobody does, in no part of the group either.
TEST(Pages, RefusedToOneRankAreRefusedByAllWithTheReason) {
  LOCKSTEP_NEEDS_PAGES();
  for (const std::string victim : {"0", "2"}) {
    auto three = start_pages(3, "refused:" + victim);
    const std::string why = "all_reduce: pages can't run here: rank " + victim +
                            " can't read the memory of rank " + (victim == "0" ? "1" : "0");
    expect_lines(three, {"ok world " + why, ", part " + why, "Operation not permitted", "ptrace_scope",
                         "seccomp", "another algorithm is chosen", ", chosen 6"});
  }
}

TEST(Pages, RefusedAndAskedForByTheEnvironmentAreOneLine) {
  LOCKSTEP_NEEDS_PAGES();
  auto two = start_pages(2, "refused:1", {"LOCKSTEP_ALGORITHM=pages"});
  for (Worker& worker : two)
    expect_failure(worker, "usage",
                   {"LOCKSTEP_ALGORITHM asks for pages", "rank 1 can't read the memory of rank 0",
                    "Operation not permitted", "unset it"});
}

void expect_death(int size, const std::string& how, int victim) {
  auto workers = start_pages(size, how + ":" + std::to_string(victim));
  const std::string rank = std::to_string(victim);
  for (int r = 0; r < size; ++r) {
    Worker& worker = workers[static_cast<std::size_t>(r)];
    if (r != victim) {
      expect_failure(worker, "peer " + rank, {"rank " + rank + " of group world died"});
      continue;
    }
    EXPECT_EQ(worker.finish(), "");
    EXPECT_EQ(worker.status(), 128 + SIGSYS);
  }
}

// With its first read of a peer's input, while its own pages are being read.
TEST(Pages, OfARankThatDiesWhileInputsAreReadNameIt) {
  LOCKSTEP_NEEDS_PAGES();
  expect_death(2, "killed", 1);
  expect_death(3, "killed", 0);
}

// Rank 0 of two has no part of one element: its first read is that of a result.
TEST(Pages, OfARankThatDiesWhileResultsAreReadNameIt) {
  LOCKSTEP_NEEDS_PAGES();
  expect_death(2, "killed_late", 0);
}

// Memory that its process may read and the kernel does not read for others, as a device's: here it is mapped
// for writing alone, which processors take for both.
TEST(Pages, ThatTheKernelCantReadGoAnotherWay) {
  LOCKSTEP_NEEDS_PAGES();
  auto two = start_pages(2, "unreadable:1", {"LOCKSTEP_ALGORITHM=pages"});
  expect_ok(two[0], "chosen 3, by name not tried");
  expect_ok(
      two[1],
      "chosen 3, by name all_reduce: pages can't run: the kernel does not read this buffer for the other "
      "ranks (is it a device's?); without a name another algorithm is chosen");
}

TEST(Pages, ThatCantBeReadInTheMiddleFailTheGroup) {
  LOCKSTEP_NEEDS_PAGES();
  for (const std::string how : {"hole:1", "refused_later:0"}) {
    auto two = start_pages(2, how);
    for (Worker& worker : two)
      expect_failure(worker, "system",
                     {"rank 0 can't read the buffers of rank 1", "all_reduce(f32", "by pages",
                      how == "hole:1" ? "Bad address" : "Operation not permitted"});
  }
}

}  // namespace
}  // namespace lockstep::testing
