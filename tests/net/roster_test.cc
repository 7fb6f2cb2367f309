#include "net/roster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>

#include "base/free_port.h"
#include "base/repeated.h"
#include "lockstep/base/error.h"
#include "net/mail.h"
#include "net/roster_mail.h"
#include "net/tools.h"

namespace lockstep::net {
namespace {

class RosterTest : public ::testing::TestWithParam<Security> {
 protected:
  RosterOptions options(int rank, int size) const {
    return {.endpoint = endpoint_,
            .secret = secret_,
            .security = GetParam(),
            .rank = rank,
            .size = size,
            .timeout = std::chrono::milliseconds(8000)};
  }

  using Cards = std::vector<std::string>;
  std::future<Cards> start(const RosterOptions& options, const std::string& card) const {
    return std::async(std::launch::async, [=] { return exchange_cards(options, card); });
  }

  Secret secret_ = Secret::make();
  Endpoint endpoint_{.host = "127.0.0.1", .port = free_port()};
};

template <typename Expected, typename Result>
std::string message_of(std::future<Result>& future) {
  try {
    future.get();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

TEST_P(RosterTest, EverybodyGetsEverybodysCard) {
  constexpr int kSize = 9;
  std::vector<std::future<Cards>> ranks;
  Cards expected;
  for (int rank = 0; rank < kSize; ++rank)
    expected.push_back("card\n" + std::string(static_cast<std::size_t>(rank), '\0'));
  for (int rank = kSize - 1; rank >= 0; --rank)  // rank 0 comes last
    ranks.push_back(start(options(rank, kSize), expected[static_cast<std::size_t>(rank)]));
  for (auto& rank : ranks) EXPECT_EQ(rank.get(), expected);
}

// Who waits hears for whom, again and again: rank 0 for those who have not come, the others for rank 0.
TEST_P(RosterTest, WhoWaitsIsToldForWhom) {
  for (const int late : {0, 2}) {
    std::promise<std::string> told;
    std::atomic<int> calls = 0;
    RosterOptions waiting = options(late == 0 ? 1 : 0, 3);
    waiting.waits = [&](const std::string& whom) {
      // By the second time both that are there have met, or rank 0 is still missing.
      if (whom.find(',') == std::string::npos && ++calls == 2) told.set_value(whom);
    };
    auto first = start(waiting, "first");
    auto second = start(options(late == 0 ? 2 : 1, 3), "second");
    auto whom = told.get_future();
    ASSERT_EQ(whom.wait_for(std::chrono::seconds(6)), std::future_status::ready);
    EXPECT_EQ(whom.get(), "rank " + std::to_string(late));
    auto last = start(options(late, 3), "last");
    EXPECT_EQ(first.get(), last.get());
    second.get();
  }
}

TEST_P(RosterTest, OneAloneIsDone) { EXPECT_EQ(exchange_cards(options(0, 1), "mine"), Cards{"mine"}); }

TEST_P(RosterTest, LargeCardsPass) {
  const std::string largest(kMostCard, 'c');
  auto zero = start(options(0, 2), largest);
  auto one = start(options(1, 2), largest);
  EXPECT_TRUE(zero.get() == (Cards{largest, largest}));
  EXPECT_TRUE(one.get() == (Cards{largest, largest}));
  EXPECT_THROW(exchange_cards(options(0, 2), largest + "c"), UsageError);
}

TEST_P(RosterTest, TwoWithOneRankAreNamed) {
  auto zero = start(options(0, 4), "0");
  auto first = start(options(2, 4), "2");
  auto second = start(options(2, 4), "2");
  for (auto* rank : {&zero, &first, &second}) {
    const std::string message = message_of<UsageError>(*rank);
    EXPECT_NE(message.find("two workers say they are rank 2: one at 127.0.0.1:"), std::string::npos)
        << message;
  }
}

TEST_P(RosterTest, DifferentSizesAreNamed) {
  auto zero = start(options(0, 3), "0");
  auto one = start(options(1, 4), "1");
  for (auto* rank : {&zero, &one}) {
    const std::string message = message_of<UsageError>(*rank);
    EXPECT_NE(message.find("rank 1 at 127.0.0.1:"), std::string::npos) << message;
    EXPECT_NE(message.find("has 4 workers, rank 0 says 3"), std::string::npos) << message;
  }
}

// Rank 2 has to arrive before rank 0 gives up. How long that takes is the machine's affair: where rank 2 was
// too late rank 0 is more patient the next time.
TEST_P(RosterTest, TheMissingAreNamedEverywhere) {
  for (auto patience = std::chrono::milliseconds(400);; patience *= 4) {
    auto impatient = options(0, 4);
    impatient.timeout = patience;
    auto late = options(2, 4);
    late.timeout = patience + std::chrono::seconds(8);
    auto two = start(late, "2");
    auto zero = start(impatient, "0");
    bool arrived = true;
    for (auto* rank : {&zero, &two}) {
      try {
        rank->get();
        ADD_FAILURE() << "no error";
      } catch (const TimeoutError& error) {
        arrived = arrived && std::ranges::count(error.missing(), 2) == 0 && !error.missing().empty();
        if (!arrived && patience < std::chrono::seconds(20)) continue;
        EXPECT_EQ(error.missing(), (std::vector<int>{1, 3})) << error.what();
        EXPECT_NE(std::string(error.what()).find("ranks 1, 3 of 4 did not come to " + endpoint_.text()),
                  std::string::npos)
            << error.what();
      } catch (const PeerError& error) {  // rank 0 gave up while rank 2 was coming
        arrived = false;
        ASSERT_LT(patience, std::chrono::seconds(20)) << error.what();
      }
    }
    if (arrived || HasFailure()) return;
    lockstep::testing::say_repeated("rank 2 came later than after " + std::to_string(patience.count()) +
                                    " ms");
  }
}

TEST_P(RosterTest, OneThatDiesWhileItWaitsIsNamed) {
  std::promise<void> two_and_three_are_there;
  std::once_flag once;
  RosterOptions first = options(0, 4);
  first.waits = [&](const std::string& whom) {
    if (whom == "rank 1") std::call_once(once, [&] { two_and_three_are_there.set_value(); });
  };
  auto zero = start(first, "0");
  auto two = start(options(2, 4), "2");
  {
    const auto stream = dial(endpoint_, secret_, GetParam(), "roster", soon());
    send_mail(*stream, CardMail{3, 4, "3"}.text(), soon());
    ASSERT_EQ(two_and_three_are_there.get_future().wait_for(std::chrono::seconds(6)),
              std::future_status::ready);
  }
  for (auto* rank : {&zero, &two}) {
    const std::string message = message_of<PeerError>(*rank);
    EXPECT_NE(message.find("rank 3 at 127.0.0.1:"), std::string::npos) << message;
    EXPECT_NE(message.find("while it waited for the others"), std::string::npos) << message;
  }
}

TEST_P(RosterTest, RankZeroGoingIsSaid) {
  auto options_of_gate = loopback_gate(secret_, GetParam());
  options_of_gate.port = endpoint_.port;
  auto gate = std::make_unique<Gate>(options_of_gate);
  auto one = start(options(1, 2), "1");
  ASSERT_NE(gate->wait_for("roster", soon()), nullptr);  // and lets go of it
  const std::string message = message_of<PeerError>(one);
  EXPECT_NE(message.find("rank 0 at 127.0.0.1:"), std::string::npos) << message;
}

TEST_P(RosterTest, BadCardsAreRefusedWithoutHarm) {
  for (const char* bad :
       {"", "card", "card 1", "card 1 2", "card x 2\n", "card -1 2\n", "card 1 99999999999\n"})
    EXPECT_THROW(CardMail::parse(bad), BadRosterMail) << bad;
  for (const char* bad : {"", "cards 1\n1\na", "cards 2\n1\na", "cards 2\n1\na9\nb", "cards 2\n1\na1\nbc",
                          "peer x\n", "peer -1\n", "cards 2\n1\na-1\n", "nonsense"})
    EXPECT_THROW(parse_answer(bad, 2), BadRosterMail) << bad;
  EXPECT_EQ(parse_answer("cards 2\n1\na0\n", 2), (Cards{"a", ""}));
  try {
    parse_answer("usage\ntwo\nlines", 2);
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "two lines");
  }
}

INSTANTIATE_TEST_SUITE_P(Both, RosterTest, ::testing::Values(Security::plaintext, Security::tls),
                         &security_name);

TEST(Roster, ManyRanks) {
  constexpr int kSize = 256;
  const Secret secret = Secret::make();
  const Endpoint endpoint{.host = "127.0.0.1", .port = free_port()};
  std::vector<std::jthread> ranks;
  std::atomic<int> good = 0;
  for (int rank = 0; rank < kSize; ++rank)
    ranks.emplace_back([&, rank] {
      const auto cards = exchange_cards({.endpoint = endpoint,
                                         .secret = secret,
                                         .security = Security::plaintext,
                                         .rank = rank,
                                         .size = kSize,
                                         .timeout = std::chrono::seconds(30)},
                                        std::string(1024, static_cast<char>('a' + rank % 26)));
      if (cards.size() == kSize && cards[255][1023] == static_cast<char>('a' + 255 % 26)) ++good;
    });
  ranks.clear();
  EXPECT_EQ(good, kSize);
}

}  // namespace
}  // namespace lockstep::net
