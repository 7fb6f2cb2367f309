// A rank that gives a call up while a peer is still in the middle of writing into its memory.
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <stop_token>
#include <thread>

#include "base/repeated.h"
#include "comm/group_cases.h"

namespace lockstep::testing {
namespace {

constexpr std::size_t kBytes = std::size_t{4} << 20;
constexpr std::size_t kCount = kBytes / sizeof(float);

// Half of a block that can't be written to for now: whoever tries waits inside its write.
struct Held {
  std::byte* slice = nullptr;
  std::atomic<bool> reached = false;
  std::atomic<bool> let_go = false;
};
Held* held = nullptr;

void wait_in_the_write(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const auto* const at = static_cast<std::byte*>(info->si_addr);
  if (at < held->slice || at >= held->slice + kBytes / 2) {
    std::signal(SIGSEGV, SIG_DFL);
    return;
  }
  held->reached = true;
  while (!held->let_go) ::sched_yield();
}

class CatchSegv {
 public:
  CatchSegv() {
    struct sigaction action = {};
    action.sa_sigaction = wait_in_the_write;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &before_);
  }
  ~CatchSegv() { ::sigaction(SIGSEGV, &before_, nullptr); }
  CatchSegv(const CatchSegv&) = delete;
  CatchSegv& operator=(const CatchSegv&) = delete;

 private:
  struct sigaction before_ = {};
};

using Body = std::function<void(const Group&, Buffer, const CallOptions&)>;

// Whether `call` ends in a TimeoutError that names `parts`; any other error is a failure.
bool gives_up(const std::function<void()>& call, const std::vector<std::string>& parts = {}) {
  try {
    call();
  } catch (const Error&) {
    expect_error<TimeoutError>([] { throw; }, parts);
    return true;
  }
  return false;
}

// Rank 1 stands in its first write to rank 0's memory when rank 0's time, `timeout`, is over, and for a while
// longer. What rank 0 puts there when it has its error must stay. False: the machine let rank 1 come to its
// write too late, or stand there for so long that rank 0 need not have waited, or rank 0 begin its call so
// late that rank 1 was let go before the time was over.
bool in_time(const Body& call, milliseconds timeout) {
  // Behind the end of rank 0's time.
  constexpr milliseconds kStandsFor{400};
  constexpr milliseconds kMostStands{1500};  // less than a rank that gives up waits for its peers
  Held here;
  held = &here;
  const CatchSegv handler;
  Clock::time_point end, through;          // of rank 0's time; of rank 1's call
  std::atomic<bool> came_through = false;  // a rank, without an error
  CommMemory memory;                       // of rank 0
  on_threads(thread_groups(2, {.timeout = std::chrono::minutes(5)}), [&](const Group& g) {
    CommMemory own = g.allocate(kBytes);
    const Buffer x{own.data(), kCount, DType::f32};
    std::fill_n(own.as<float>(), kCount, 1.0F);
    if (g.rank() == 1) {
      g.barrier();
      if (!gives_up([&] { call(g, x, {.algorithm = "direct"}); })) came_through = true;
      through = Clock::now();
      return;
    }
    memory = std::move(own);
    here.slice = memory.as<std::byte>() + kBytes / 2;
    ASSERT_EQ(::mprotect(here.slice, kBytes / 2, PROT_READ), 0);
    g.barrier();
    end = Clock::now() + timeout;
    // Where rank 1 does not come to its write rank 0 leaves without it, and nobody has to be held any more.
    const std::jthread timer([&](const std::stop_token& stop) {
      while (!here.reached && !stop.stop_requested()) std::this_thread::yield();
      if (here.reached) std::this_thread::sleep_until(end + kStandsFor);
      ::mprotect(here.slice, kBytes / 2, PROT_READ | PROT_WRITE);
      here.let_go = true;
    });
    if (!gives_up([&] { call(g, x, {.algorithm = "direct", .timeout = timeout}); }, {"rank 1"}))
      came_through = true;
    ::mprotect(here.slice, kBytes / 2, PROT_READ | PROT_WRITE);
    std::fill_n(memory.as<float>(), kCount, 7.0F);
  });
  if (!here.reached || came_through || through - end > kMostStands) return false;
  EXPECT_EQ(std::count(memory.as<float>(), memory.as<float>() + kCount, 7.0F), std::ptrdiff_t{kCount});
  return true;
}

// How soon a rank gets a core is the machine's affair: where that was too late, again with more time.
void expect_untouched(const Body& call) {
  constexpr milliseconds kLongest{5000};
  milliseconds timeout{300};
  for (int attempt = 0; attempt < 20; ++attempt) {
    if (attempt > 0) {
      say_repeated(
          "rank 1 came late to its write, or stood in it for long, or rank 0 was late and nobody gave up, "
          "with a timeout of " +
          std::to_string(timeout.count()) + " ms");
      timeout = std::min(timeout * 3 / 2, kLongest);
    }
    if (in_time(call, timeout) || ::testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "this machine is too busy to tell, or no rank ever gives up";
}

TEST(LatePeer, WritesNothingBehindTheErrorOfAnAllReduce) {
  expect_untouched([](const Group& g, Buffer x, const CallOptions& options) { g.all_reduce(x, options); });
}

TEST(LatePeer, WritesNothingBehindTheErrorOfAReduce) {
  expect_untouched([](const Group& g, Buffer x, const CallOptions& options) { g.reduce(x, x, 0, options); });
}

}  // namespace
}  // namespace lockstep::testing
