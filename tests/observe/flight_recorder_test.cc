#include "lockstep/observe/flight_recorder.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The memory of one ring, shared with children.
class Memory {
 public:
  Memory()
      : data_(static_cast<std::byte*>(::mmap(nullptr, FlightRing::kBytes, PROT_READ | PROT_WRITE,
                                             MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { ::munmap(data_, FlightRing::kBytes); }
  std::span<std::byte> bytes() const { return {data_, FlightRing::kBytes}; }

 private:
  std::byte* data_;
};

FlightCall all_reduce(std::uint64_t count) {
  FlightCall call = FlightCall::named("all_reduce");
  call.dtype = DType::f32;
  call.op = ReduceOp::sum;
  call.count = count;
  return call;
}

TEST(FlightRing, ZeroedMemoryIsEmpty) {
  Memory memory;
  EXPECT_TRUE(FlightRing(memory.bytes()).last().empty());
  EXPECT_TRUE(read_flight_ring(memory.bytes()).empty());
}

TEST(FlightRing, EndAndRunningBeforeBeginRecordNothing) {
  Memory memory;
  FlightRing ring(memory.bytes());
  ring.running("ring");
  ring.end(FlightState::done, 1);
  EXPECT_TRUE(ring.last().empty());
}

TEST(FlightRing, AnOperationGoesThroughItsStates) {
  Memory memory;
  FlightRing ring(memory.bytes());
  FlightEntry expected{.sequence = 17,
                       .what = "all_reduce",
                       .detail = "f32 × 1024, sum",
                       .algorithm = "",
                       .state = FlightState::waiting,
                       .begin_ns = 100,
                       .end_ns = 0};
  ring.begin(17, all_reduce(1024), 100);
  EXPECT_EQ(ring.last(), std::vector{expected});

  ring.running("halving-doubling");
  expected.algorithm = "halving-doubling";
  expected.state = FlightState::running;
  EXPECT_EQ(ring.last(), std::vector{expected});

  ring.running("tree");  // inside; the outer name stays
  EXPECT_EQ(ring.last(), std::vector{expected});

  ring.end(FlightState::failed, 250);
  expected.state = FlightState::failed;
  expected.end_ns = 250;
  EXPECT_EQ(ring.last(), std::vector{expected});
}

TEST(FlightRing, AReusedSlotKeepsNothingOfTheOldOperation) {
  Memory memory;
  FlightRing ring(memory.bytes());
  for (std::uint64_t i = 1; i <= FlightRing::kEntries; ++i) {
    ring.begin(i, all_reduce(i), 1);
    ring.running("a-name-of-24-characters-and-more");
    ring.end(FlightState::done, 2);
  }
  EXPECT_EQ(ring.last().front().algorithm, "a-name-of-24-characters-");
  for (std::uint64_t i = 1; i <= FlightRing::kEntries; ++i)
    ring.begin(100 + i, FlightCall::named("barrier"), 3);
  for (const FlightEntry& entry : ring.last()) {
    EXPECT_EQ(entry.detail, "");
    EXPECT_EQ(entry.algorithm, "");
    EXPECT_EQ(entry.end_ns, 0);
    EXPECT_EQ(entry.state, FlightState::waiting);
  }
}

TEST(FlightRing, KeepsTheLastOperationsInOrder) {
  Memory memory;
  FlightRing ring(memory.bytes());
  const std::uint64_t total = 3 * FlightRing::kEntries + 5;
  for (std::uint64_t i = 1; i <= total; ++i) ring.begin(i, all_reduce(i), static_cast<std::int64_t>(i));
  const std::vector<FlightEntry> last = ring.last();
  ASSERT_EQ(last.size(), FlightRing::kEntries);
  for (std::size_t i = 0; i < last.size(); ++i) EXPECT_EQ(last[i].sequence, total - last.size() + 1 + i);
}

TEST(FlightRing, ASecondWriterContinuesTheRing) {
  Memory memory;
  for (std::uint64_t i = 1; i <= 100; ++i) FlightRing(memory.bytes()).begin(i, all_reduce(i), 0);
  const auto last = read_flight_ring(memory.bytes());
  ASSERT_EQ(last.size(), FlightRing::kEntries);
  EXPECT_EQ(last.front().sequence, 37U);
  EXPECT_EQ(last.back().sequence, 100U);
}

TEST(FlightRing, RefusesMemoryThatIsTooSmallOrMisaligned) {
  alignas(64) static std::byte bytes[FlightRing::kBytes + 64];
  EXPECT_THROW(FlightRing(std::span(bytes, FlightRing::kBytes - 1)), UsageError);
  EXPECT_THROW(FlightRing(std::span(bytes + 8, FlightRing::kBytes)), UsageError);
  EXPECT_THROW(read_flight_ring({}), UsageError);
  EXPECT_NO_THROW(FlightRing(std::span(bytes + 64, FlightRing::kBytes)));
}

TEST(FlightRing, AnyBytesCanBeRead) {
  Memory memory;
  for (int pattern : {0x01, 0x7e, 0x80, 0xfe, 0xff}) {
    std::memset(memory.bytes().data(), pattern, FlightRing::kBytes);
    for (const FlightEntry& entry : read_flight_ring(memory.bytes()))
      for (char c : entry.what + entry.algorithm) EXPECT_TRUE(c >= ' ' && c <= '~');
  }
}

TEST(FlightCall, DescribesWhatIsThere) {
  EXPECT_EQ(describe(all_reduce(4)), "f32 × 4, sum");
  EXPECT_EQ(describe(FlightCall::named("barrier")), "");
  FlightCall call = FlightCall::named("broadcast");
  call.dtype = DType::bf16;
  call.root = 0;
  EXPECT_EQ(describe(call), "bf16 × 0, root 0");
  call = FlightCall::named("send");
  call.dtype = DType::i64;
  call.count = 3;
  call.root = 2;
  EXPECT_EQ(describe(call), "i64 × 3, to 2");
  std::memcpy(call.what, "recv", 5);
  EXPECT_EQ(describe(call), "i64 × 3, from 2");
  call = FlightCall::named("sixteen_letters_and_more");
  EXPECT_EQ(std::string_view(call.what, 16), "sixteen_letters_");
}

// Every field of operation n follows from n, so an entry mixed from two operations shows.
void write_operation(FlightRing& ring, std::uint64_t n) {
  FlightCall call = all_reduce(n);
  for (int i = 0; i < 16; ++i) call.what[i] = "0123456789abcdef"[n >> (4 * (15 - i)) & 15];
  call.root = static_cast<std::int32_t>(n & 0xffff);
  ring.begin(n, call, static_cast<std::int64_t>(n));
  ring.running(std::string(24, static_cast<char>('a' + n % 26)));
  ring.end(n % 3 == 0 ? FlightState::failed : FlightState::done, static_cast<std::int64_t>(n + 1));
}

// What is wrong with an entry of write_operation; empty when nothing.
std::string torn(const FlightEntry& e) {
  const std::uint64_t n = e.sequence;
  std::string what;
  for (int i = 0; i < 16; ++i) what += "0123456789abcdef"[n >> (4 * (15 - i)) & 15];
  if (e.what != what) return "what " + e.what;
  if (e.detail != "f32 × " + std::to_string(n) + ", sum, root " + std::to_string(n & 0xffff)) return e.detail;
  if (e.begin_ns != static_cast<std::int64_t>(n)) return "begin_ns";
  if (e.state == FlightState::waiting ? !(e.algorithm.empty() || e.algorithm.size() == 24)
                                      : e.algorithm != std::string(24, static_cast<char>('a' + n % 26)))
    return "algorithm " + e.algorithm;
  const bool over = e.state == FlightState::done || e.state == FlightState::failed;
  if (over && e.end_ns != static_cast<std::int64_t>(n + 1)) return "end_ns";
  if (over && (e.state == FlightState::failed) != (n % 3 == 0)) return "state";
  return "";
}

// Reads until operation `last` is seen; entries must be whole and in order.
void read_until(std::span<const std::byte> memory, std::uint64_t last) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  for (std::uint64_t seen = 0; seen < last;) {
    ASSERT_FALSE(deadline.passed()) << "stuck at operation " << seen;
    std::uint64_t before = 0;
    for (const FlightEntry& entry : read_flight_ring(memory)) {
      ASSERT_EQ(torn(entry), "") << "in operation " << entry.sequence;
      ASSERT_GT(entry.sequence, before);
      before = entry.sequence;
    }
    seen = std::max(seen, before);
  }
}

constexpr std::uint64_t kOperations = 200'000;

TEST(FlightRing, ThreadsReadWhileOneWrites) {
  Memory memory;
  std::jthread writer([&] {
    FlightRing ring(memory.bytes());
    for (std::uint64_t n = 1; n <= kOperations; ++n) write_operation(ring, n);
  });
  std::jthread other([&] { read_until(memory.bytes(), kOperations); });
  read_until(memory.bytes(), kOperations);
}

TEST(FlightRing, AProcessReadsWhileAnotherWrites) {
  Memory memory;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    FlightRing ring(memory.bytes());
    for (std::uint64_t n = 1; n <= kOperations; ++n) write_operation(ring, n);
    ::_exit(0);
  }
  read_until(memory.bytes(), kOperations);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(FlightRing, AKilledWriterLeavesAReadableRing) {
  for (int round = 0; round < 20; ++round) {
    Memory memory;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FlightRing ring(memory.bytes());
      for (std::uint64_t n = 1;; ++n) write_operation(ring, n);
    }
    while (read_flight_ring(memory.bytes()).size() < FlightRing::kEntries / 2) std::this_thread::yield();
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto last = read_flight_ring(memory.bytes());
    EXPECT_GE(last.size(), FlightRing::kEntries / 2 - 1);  // at most the one being begun is missing
    for (const FlightEntry& entry : last) EXPECT_EQ(torn(entry), "");
    for (std::size_t i = 1; i < last.size(); ++i) EXPECT_EQ(last[i].sequence, last[i - 1].sequence + 1);
  }
}

}  // namespace
}  // namespace lockstep
