// Messages between two ranks across wires: any size, in order, beside collectives; and what happens when they
// don't agree.
#include <array>
#include <numeric>

#include "comm/wire_cases.h"

namespace lockstep::testing {
namespace {

using Ints = std::vector<std::int32_t>;

class WireMessages : public OverWires {};

TEST_P(WireMessages, KeepTheirOrderAndMayBeAnySize) {
  on_threads(GetParam().make(kPatient), [](const Group& g) {
    // Between neighbours on a node and across nodes.
    for (const auto& [from, to] : {std::pair{0, 1}, std::pair{0, 3}, std::pair{3, 1}, std::pair{2, 0}})
      for (const std::size_t count : {0, 1, 17, 4096, 0, 65'537, 300'001, 3}) {
        Ints x(count);
        std::iota(x.begin(), x.end(), static_cast<std::int32_t>(count) + from);
        if (g.rank() == from) g.send(buffer(x), to);
        if (g.rank() != to) continue;
        Ints got(count);
        g.recv(buffer(got), from);
        EXPECT_EQ(got, x);
      }
  });
}

// Sent before a collective and received after it, both ways at once, more than once.
TEST_P(WireMessages, WaitWhileCollectivesPass) {
  on_threads(GetParam().make(kPatient), [](const Group& g) {
    for (int round = 0; round < 10; ++round) {
      const int size = g.size();
      for (int step = 1; step < size; ++step) {
        const Ints x(100, g.rank() * 100 + round);
        g.send(buffer(x), (g.rank() + step) % size);
      }
      expect_usable(g);
      Floats all(static_cast<std::size_t>(size) * 1000);
      Floats own(1000, static_cast<float>(g.rank()));
      g.all_gather(buffer(own), buffer(all));
      EXPECT_EQ(all.back(), 3);
      g.barrier();
      for (int step = 1; step < size; ++step) {
        const int from = (g.rank() + size - step) % size;
        Ints got(100);
        g.recv(buffer(got), from);
        EXPECT_EQ(got, Ints(100, from * 100 + round));
      }
    }
  });
}

struct SentOtherwise {
  std::size_t sent, received;
  DType sent_as, received_as;
};

void send_otherwise(const Wire& wire, const SentOtherwise& c, int from, std::atomic<bool>& late) {
  on_threads(wire.make(kPatient), [&](const Group& g) {
    std::vector<double> x(200'000);
    const auto named = [](DType dtype, std::size_t count) {
      return std::string(to_string(dtype)) + " × " + std::to_string(count);
    };
    const std::vector<std::string> says = {
        "rank 1 called recv(" + named(c.received_as, c.received),
        "rank " + std::to_string(from) + " called send(" + named(c.sent_as, c.sent)};
    const auto took = time_of([&] {
      expect_error<MismatchError>(
          [&] {
            if (g.rank() == from) g.send(ConstBuffer(x.data(), c.sent, c.sent_as), 1);
            if (g.rank() == 1) g.recv(Buffer{x.data(), c.received, c.received_as}, from);
            g.barrier();
          },
          says);
    });
    if (took >= kTold) late = true;
    expect_error<MismatchError>([&] { g.barrier(); }, says);
  });
}

TEST_P(WireMessages, CountsAndTypesMustAgree) {
  for (const SentOtherwise& c :
       {SentOtherwise{4, 5, DType::f32, DType::f32}, SentOtherwise{4, 4, DType::f32, DType::i32},
        SentOtherwise{4, 2, DType::f32, DType::f64}, SentOtherwise{0, 1, DType::f32, DType::f32},
        SentOtherwise{9, 0, DType::f32, DType::f32}, SentOtherwise{400'000, 1, DType::f32, DType::f32}})
    for (const int from : {0, 3})
      expect_told_soon([&](std::atomic<bool>& late) { send_otherwise(GetParam(), c, from, late); });
}

void message_beside_collective(net::Security security, bool sends, std::atomic<bool>& late) {
  on_threads(tcp_groups(3, security, kPatient), [&](const Group& g) {
    std::vector<double> x(4 << 20);
    const auto took = time_of([&] {
      expect_error<MismatchError>(
          [&] {
            if (g.rank() != 1) g.all_reduce(Buffer{x.data(), 100, DType::f64}, {.algorithm = "ring"});
            if (g.rank() == 1 && sends) g.send(buffer(x), 2);
            if (g.rank() == 1 && !sends) g.recv(buffer(x), 2);
          },
          {"called different things", std::string("rank 1 called ") + (sends ? "send" : "recv"),
           "rank 2 called all_reduce(f64 × 100"});
    });
    if (took >= kTold) late = true;
  });
}

// A large one goes nowhere while its receiver is in a collective, and a receiver waits for a sender that is
// in one: neither can end, and they say so.
TEST(WireMessage, WhileOthersAreInACollective) {
  for (const auto security : {net::Security::plaintext, net::Security::tls})
    for (const bool sends : {true, false})
      expect_told_soon([&](std::atomic<bool>& late) { message_beside_collective(security, sends, late); });
}

// The receiver is late: what was begun goes on as it was, while the sender says that it waits.
TEST(WireMessage, ALateReceiverGetsALargeOneWhole) {
  for (const auto security : {net::Security::plaintext, net::Security::tls})
    on_threads(tcp_groups(2, security, kPatient), [&](const Group& g) {
      constexpr std::size_t count = (64 << 20) / sizeof(std::int32_t);
      for (const int from : {0, 1}) {
        Ints x(count);
        if (g.rank() == from) {
          std::iota(x.begin(), x.end(), from);
          g.send(buffer(x), 1 - from);
        } else {
          std::this_thread::sleep_for(milliseconds(1300));
          g.recv(buffer(x), from);
          std::int64_t wrong = 0;
          for (std::size_t i = 0; i < count; ++i) wrong += x[i] != static_cast<std::int32_t>(i) + from;
          EXPECT_EQ(wrong, 0);
        }
        expect_usable(g);
      }
    });
}

// One begins when the connection is full already, and waits there while the sender says that it waits.
TEST(WireMessage, ALateReceiverGetsManyInOrder) {
  for (const auto security : {net::Security::plaintext, net::Security::tls})
    on_threads(tcp_groups(2, security, kPatient), [&](const Group& g) {
      constexpr int kMany = 150;
      Ints x(30'000);
      if (g.rank() == 1) std::this_thread::sleep_for(milliseconds(1300));
      for (int i = 0; i < kMany; ++i) {
        if (g.rank() == 0) x.assign(x.size(), i);
        if (g.rank() == 0) g.send(buffer(x), 1);
        if (g.rank() == 1) g.recv(buffer(x), 0);
        ASSERT_EQ(x.front(), i);
        ASSERT_EQ(x.back(), i);
      }
      expect_usable(g);
    });
}

// A collective whose receivers are late, and messages of 64 MiB both ways at once.
TEST(WireMessage, LargeCollectivesBothWays) {
  for (const char* streams : {"1", "3"}) {
    const Variable several("LOCKSTEP_TCP_STREAMS", streams);
    for (const auto security : {net::Security::plaintext, net::Security::tls})
      on_threads(tcp_groups(2, security, kPatient), [&](const Group& g) {
        constexpr std::size_t count = (64 << 20) / sizeof(float);
        Floats x(count, static_cast<float>(1 + g.rank()));
        x.back() = static_cast<float>(10 * (1 + g.rank()));
        Floats y(count);
        if (g.rank() == 1) std::this_thread::sleep_for(milliseconds(800));
        g.all_to_all(buffer(x), buffer(y));
        EXPECT_EQ(y.front(), 1);
        EXPECT_EQ(y.back(), g.rank() == 0 ? 2 : 20);
        g.all_reduce(buffer(x));
        EXPECT_EQ(std::accumulate(x.begin(), x.end() - 1, 0.0), 3.0 * (count - 1));
        EXPECT_EQ(x.back(), 30);
        g.broadcast(buffer(y), 1);
        EXPECT_EQ(y.back(), 20);
      });
  }
}

// Parts of a message on several connections, of sizes around where it is cut.
TEST(WireMessage, SeveralStreams) {
  const Variable several("LOCKSTEP_TCP_STREAMS", "3");
  for (const auto security : {net::Security::plaintext, net::Security::tls})
    on_threads(tcp_groups(3, security, kPatient), [&](const Group& g) {
      for (const char* algorithm : {"ring", "tree", "halving-doubling", "pairwise", "doubling"})
        for (const std::size_t bytes : {(256 << 10) - 4, 256 << 10, (256 << 10) + 4, (1 << 20) + 12}) {
          const std::size_t count = bytes / sizeof(std::int32_t);
          Ints x(count);
          std::iota(x.begin(), x.end(), g.rank());
          g.all_reduce(buffer(x), {.algorithm = algorithm});
          std::int64_t wrong = 0;
          for (std::size_t i = 0; i < count; ++i) wrong += x[i] != static_cast<std::int32_t>(3 * i) + 3;
          EXPECT_EQ(wrong, 0) << algorithm << " of " << bytes << " bytes";
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Over, WireMessages, ::testing::ValuesIn(wires()), wire_name);

}  // namespace
}  // namespace lockstep::testing
