// init() in environments that can't work: one clear line of the right kind, at once, and no hang.
#include <algorithm>

#include "base/repeated.h"
#include "comm/worker_process.h"

namespace lockstep::testing {
namespace {

using Variables = std::vector<std::string>;

TEST(Environment, NoneIsOneWorker) {
  Worker alone({});
  expect_ok(alone, "sum 1 nodes 1 local 1");
}

struct Bad {
  Variables variables;
  std::vector<std::string> says;
};

TEST(Environment, ThatContradictsItselfIsRefused) {
  const std::vector<Bad> cases = {
      {{"RANK=0"}, {"half set", "RANK=0", "WORLD_SIZE"}},
      {{"WORLD_SIZE=2"}, {"half set", "WORLD_SIZE=2", "RANK"}},
      {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0"}, {"half set", "LOCAL_WORLD_SIZE"}},
      {{"LOCKSTEP_JOB=x"}, {"LOCKSTEP_JOB=x", "RANK", "left over", "unset LOCKSTEP_JOB"}},
      {{"OMPI_COMM_WORLD_RANK=1"}, {"half set", "OMPI_COMM_WORLD_SIZE"}},
      {{"PMI_SIZE=2"}, {"half set", "PMI_RANK"}},
      {{"RANK=2", "WORLD_SIZE=2"}, {"RANK=2", "WORLD_SIZE=2", "0 to 1"}},
      {{"RANK=0", "WORLD_SIZE=0"}, {"WORLD_SIZE=0", "at least 1"}},
      {{"RANK=-1", "WORLD_SIZE=2"}, {"RANK='-1'", "accepted"}},
      {{"RANK=one", "WORLD_SIZE=2"}, {"RANK='one'", "accepted"}},
      {{"RANK=1", "WORLD_SIZE=99999999999"}, {"WORLD_SIZE='99999999999'", "accepted"}},
      {{"RANK=1", "WORLD_SIZE=5000"}, {"5000 ranks", "at most 4096"}},
      {{"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2"},
       {"need the job's secret", "lockstep run", "LOCKSTEP_SECRET_FILE"}},
      {{"LOCKSTEP_TIMEOUT=3"}, {"unknown", "LOCKSTEP_TIMEOUT;", "LOCKSTEP_TIMEOUT_S"}},
      {{"LOCKSTEP_TIMEOUT_S=soon"}, {"LOCKSTEP_TIMEOUT_S='soon'", "accepted"}},
      {{"LOCKSTEP_INIT_TIMEOUT_S=-1"}, {"LOCKSTEP_INIT_TIMEOUT_S='-1'", "accepted"}},
      {{"LOCKSTEP_ARENA=1K"}, {"LOCKSTEP_ARENA='1K'", "64M"}},
      {{"LOCKSTEP_SPIN_US=x"}, {"LOCKSTEP_SPIN_US='x'", "accepted"}},
      {{"LOCKSTEP_HUGE_PAGES=yes"}, {"LOCKSTEP_HUGE_PAGES='yes'", "0 or 1"}},
      {{"LOCKSTEP_NODE_SIZE=-2"}, {"LOCKSTEP_NODE_SIZE='-2'", "accepted"}},
      {{"LOCKSTEP_ALGORITHM=fastest"}, {"'fastest'", "LOCKSTEP_ALGORITHM", "direct"}},
      {{"LOCKSTEP_LOG=loud"}, {"LOCKSTEP_LOG='loud'", "warn"}},
  };
  std::vector<Worker> workers;  // one that waited for others would say so
  for (const Bad& bad : cases) workers.emplace_back(WorkerOptions{.variables = bad.variables});
  for (std::size_t i = 0; i < cases.size(); ++i) expect_failure(workers[i], "usage", cases[i].says);
}

// Two workers, or as many as there are ranks given; `sizes[i]` is what worker i is told.
std::vector<Worker> start(const std::vector<int>& ranks, const std::vector<int>& sizes,
                          const Variables& more = {}, const std::vector<std::string>& arguments = {"sum"}) {
  const std::string job = new_job();
  std::vector<Worker> workers;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    workers.emplace_back(
        WorkerOptions{.arguments = arguments, .variables = variables_of(job, ranks[i], sizes[i], more)});
  return workers;
}

Variables patience_of(int seconds) { return {"LOCKSTEP_INIT_TIMEOUT_S=" + std::to_string(seconds)}; }

const Variables kSoon = {"LOCKSTEP_INIT_TIMEOUT_S=0.5"};

TEST(Environment, TwoWorkersOfOneRank) {
  auto three = start({0, 1, 1}, {3, 3, 3});
  for (Worker& worker : three) expect_failure(worker, "usage", {"two workers", "rank 1 of 3"});
  auto ones = start({1, 1}, {2, 2}, kSoon);
  for (Worker& worker : ones)
    expect_failure(worker, "timeout 0", {"rank 1 waited 0.5 s for rank 0", "LOCKSTEP_INIT_TIMEOUT_S"});
  // A second rank 0 is refused, whichever it is, and the first is as if there had been none.
  const std::string job = new_job();
  std::vector<Worker> zeros;
  for (int i = 0; i < 2; ++i) zeros.emplace_back(WorkerOptions{.variables = variables_of(job, 0, 2)});
  const std::size_t refused = first_to_speak(zeros[0], zeros[1]);
  expect_failure(zeros[refused], "usage", {"another process is already rank 0 of this job", job});
  Worker one({.variables = variables_of(job, 1, 2)});
  expect_ok(zeros[1 - refused], "sum 3 nodes 1 local 2");
  expect_ok(one, "sum 3 nodes 1 local 2");
}

TEST(Environment, WorkersThatDisagree) {
  auto sizes = start({0, 1}, {2, 3});
  for (Worker& worker : sizes)
    expect_failure(worker, "usage",
                   {"disagree about their number", "rank 0 was told 2", "rank 1 was told 3"});
  const std::string job = new_job();
  Worker host({.variables = variables_of(job, 0, 2)});
  Worker guest({.variables = variables_of(job, 1, 2, {"LOCKSTEP_ARENA=128M"})});
  for (Worker* worker : {&host, &guest}) expect_failure(*worker, "usage", {"LOCKSTEP_ARENA"});
}

// Rank 2 has all the time that it needs to come to rank 0, whose time is that of both. False: it came later
// even so, and nothing was asked.
bool expect_one_and_three_missing(int seconds) {
  const std::string job = new_job();
  Worker two({.variables = variables_of(job, 2, 4)});
  Worker zero({.variables = variables_of(job, 0, 4, patience_of(seconds))});
  if (zero.finish().starts_with("timeout 1 2 3:")) {
    say_repeated("rank 2 came later than " + std::to_string(seconds) + " s");
    return false;
  }
  for (Worker* worker : {&zero, &two})
    expect_failure(*worker, "timeout 1 3",
                   {std::to_string(seconds) + " s", "missing: rank 1, 3", "LOCKSTEP_INIT_TIMEOUT_S"});
  return true;
}

TEST(Environment, ThoseWhoDoNotComeAreNamed) {
  auto no_host = start({1}, {2}, kSoon);
  bool asked = false;
  for (const int seconds : {2, 8, 20}) asked = asked || expect_one_and_three_missing(seconds);
  EXPECT_TRUE(asked) << "rank 2 is said to be missing too";
  expect_failure(no_host[0], "timeout 0", {"rank 1 waited 0.5 s for rank 0"});
}

TEST(Environment, LittleAddressSpace) {
  Worker alone({.arguments = {"limit"}});
  expect_failure(alone, "system", {"cannot map", "ulimit -v", "LOCKSTEP_ARENA"});
  const std::string job = new_job();
  Worker host({.arguments = {"sum"}, .variables = variables_of(job, 0, 2)});
  Worker guest({.arguments = {"limit"}, .variables = variables_of(job, 1, 2)});
  expect_failure(guest, "system", {"cannot map", "ulimit -v", "LOCKSTEP_ARENA"});
  expect_failure(host, "peer 1", {"rank 1", "died"});
}

TEST(Environment, SmallFilesOnly) {
  Worker alone({.limits = {{RLIMIT_FSIZE, 1 << 20}}});
  expect_failure(alone, "system", {"file size limit", "1 MiB", "ulimit -f", "LOCKSTEP_ARENA"});
  const std::string job = new_job();
  Worker host({.variables = variables_of(job, 0, 2), .limits = {{RLIMIT_FSIZE, 1 << 20}}});
  Worker guest({.variables = variables_of(job, 1, 2)});
  for (Worker* worker : {&host, &guest}) expect_failure(*worker, "system", {"file size limit", "ulimit -f"});
}

// UBSan opens a pipe to look at an object's type, takes its absence for a broken object and aborts: these two
// can't run with it.
#ifndef __SANITIZE_ADDRESS__
// A job of four in which rank `limited` may open only `most` files.
struct Limited {
  Limited(int limited, int most_files, const Variables& patience) : most(most_files) {
    const std::string job = new_job();
    for (int r = 0; r < 4; ++r) {
      WorkerOptions options{.variables = variables_of(job, r, 4, patience)};
      if (r == limited) options.arguments = {"files", std::to_string(most)};
      ranks.emplace_back(options);
    }
  }
  int most;
  std::vector<Worker> ranks;
};

// All at once: some of them wait until the time is over. Dozens of processes start, on cores that other tests
// use too: where those that the limited rank waits for came late it is done again with more patience.
std::vector<Limited> limited_jobs(int limited, const std::vector<int>& most) {
  constexpr int kMost = 20;
  for (int seconds = 5;; seconds = kMost) {
    std::vector<Limited> jobs;
    for (const int files : most) jobs.emplace_back(limited, files, patience_of(seconds));
    const bool late = std::any_of(jobs.begin(), jobs.end(), [&](Limited& job) {
      return job.ranks[static_cast<std::size_t>(limited)].finish().starts_with("timeout");
    });
    if (!late || seconds == kMost) return jobs;
    say_repeated("a rank with few files came later than " + std::to_string(seconds) + " s");
  }
}

TEST(Environment, FewOpenFiles) {
  for (Limited& job : limited_jobs(1, {3, 4, 5, 6, 7, 8, 9})) {
    const int most = job.most;
    SCOPED_TRACE(most);
    Worker& first = job.ranks[1];
    const std::string text = first.finish();
    EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
    EXPECT_TRUE(first.status() == 0 || text.starts_with("system: ")) << text;
    EXPECT_TRUE(most > 3 || first.status() != 0) << "it needs no file of its own";
    if (first.status() != 0) {
      EXPECT_TRUE(text.find("open files") != std::string::npos) << text;
      for (const std::size_t other : {0, 2, 3}) {
        const std::string others_text = job.ranks[other].finish();
        EXPECT_EQ(others_text.find('\n'), others_text.size() - 1) << others_text;
        EXPECT_EQ(job.ranks[other].status(), 1);
      }
    }
  }
}

TEST(Environment, RankZeroWithFewOpenFiles) {
  for (Limited& job : limited_jobs(0, {3, 4, 5, 6, 7, 8})) {
    SCOPED_TRACE(job.most);
    expect_failure(job.ranks[0], "system", {"open files"});
    for (std::size_t r = 1; r < job.ranks.size(); ++r) {
      const std::string text = job.ranks[r].finish();
      EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
      EXPECT_EQ(job.ranks[r].status(), 1) << text;
    }
  }
}
#endif

// Twice the machine's memory, rounded up to whole GiB: never available, yet mappable even where the address
// space is scarce (the thread sanitizer leaves little more than 1 TiB of it).
std::size_t more_than_there_is() {
  constexpr std::size_t gib = std::size_t{1} << 30;
  const std::size_t there =
      static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (2 * there + gib - 1) / gib * gib;
}

TEST(Environment, MoreMemoryThanThereIs) {
  const std::size_t bytes = more_than_there_is();
  auto alone =
      start({0}, {1}, {"LOCKSTEP_ARENA=" + std::to_string(bytes)}, {"allocate", std::to_string(bytes)});
  expect_failure(alone[0], "system", {"cannot allocate", "of comm memory", "available"});
}

TEST(Environment, MoreThanTheArenaHolds) {
  auto region = start({0}, {1}, {"LOCKSTEP_ARENA=64M"}, {"allocate", std::to_string(std::size_t{1} << 40)});
  expect_failure(region[0], "system", {"1 TiB", "64 MiB", "LOCKSTEP_ARENA"});
}

}  // namespace
}  // namespace lockstep::testing
