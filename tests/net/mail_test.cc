#include "net/mail.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <thread>

#include "lockstep/base/error.h"
#include "net/socket.h"
#include "net/tools.h"

namespace lockstep::net {
namespace {

class MailTest : public ::testing::TestWithParam<Security> {
 protected:
  Pair pair_ = connected(GetParam());
};

TEST_P(MailTest, ArrivesWhole) {
  const std::string large(3'000'000, 'x');
  std::jthread sender([&] {
    for (const std::string& text : {std::string(), std::string("a\0b\n", 4), large, std::string("end")})
      send_mail(*pair_.dialler, text, soon());
  });
  EXPECT_EQ(receive_mail(*pair_.gate, soon()), "");
  EXPECT_EQ(receive_mail(*pair_.gate, soon()), std::string("a\0b\n", 4));
  EXPECT_TRUE(receive_mail(*pair_.gate, soon()) == large);
  EXPECT_EQ(receive_mail(*pair_.gate, soon()), "end");
}

TEST_P(MailTest, ABoundIsHeldByReaderAndSender) {
  send_mail(*pair_.dialler, std::string(11, 'x'), soon());
  EXPECT_THROW(receive_mail(*pair_.gate, soon(), 10), ConnectionLost);
  EXPECT_THROW(send_mail(*pair_.dialler, std::string(kMostMail + 1, 'x'), soon()), UsageError);
  EXPECT_THROW(MailWriter().add(std::string(kMostMail + 1, 'x')), UsageError);
}

TEST_P(MailTest, SaysWhenNothingComes) {
  EXPECT_THROW(receive_mail(*pair_.gate, in(std::chrono::milliseconds(20))), TimeoutError);
  send_all(*pair_.dialler, bytes_of(std::string_view("\0\0\0\5abc", 7)));
  EXPECT_THROW(receive_mail(*pair_.gate, in(std::chrono::milliseconds(50))), TimeoutError);
}

TEST_P(MailTest, SaysWhenThePeerWent) {
  send_all(*pair_.dialler, bytes_of(std::string_view("\0\0\0\5abc", 7)));
  pair_.dialler.reset();
  EXPECT_THROW(receive_mail(*pair_.gate, soon()), ConnectionLost);
}

TEST_P(MailTest, EventLoopsGetItPieceByPiece) {
  MailWriter writer;
  for (int i = 0; i < 50; ++i)
    writer.add(std::string(static_cast<std::size_t>(i) * 1000, static_cast<char>('a' + i % 26)));
  MailReader reader;
  int next = 0;
  while (next < 50) {
    writer.flush(*pair_.dialler);
    while (const auto message = reader.poll(*pair_.gate)) {
      ASSERT_EQ(*message,
                std::string(static_cast<std::size_t>(next) * 1000, static_cast<char>('a' + next % 26)));
      ++next;
    }
    ASSERT_FALSE(pair_.gate->pending());
    const bool more = next == 50 || wait_ready(pair_.gate->fd(), POLLIN, soon());
    ASSERT_TRUE(more);
  }
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(reader.poll(*pair_.gate), std::nullopt);
}

TEST_P(MailTest, WhatCameBeforeTheEndIsGivenOut) {
  send_mail(*pair_.dialler, "one", soon());
  send_mail(*pair_.dialler, "two", soon());
  pair_.dialler.reset();
  MailReader reader;
  std::vector<std::string> got;
  try {
    while (got.size() < 3) {
      if (auto message = reader.poll(*pair_.gate)) {
        got.push_back(*message);
      } else {
        ASSERT_TRUE(wait_ready(pair_.gate->fd(), POLLIN, soon()));
      }
    }
    FAIL() << "a third message";
  } catch (const ConnectionLost&) {
  }
  EXPECT_EQ(got, (std::vector<std::string>{"one", "two"}));
}

INSTANTIATE_TEST_SUITE_P(Both, MailTest, ::testing::Values(Security::plaintext, Security::tls),
                         &security_name);

TEST(MailParser, FindsMessagesHoweverTheyAreCut) {
  const std::string_view stream("\0\0\0\1a\0\0\0\0\0\0\0\3bcd", 16);
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    MailParser parser(3);
    std::vector<std::string> got;
    for (const std::string_view piece : {stream.substr(0, cut), stream.substr(cut)}) {
      parser.take(bytes_of(piece));
      while (auto message = parser.next()) got.push_back(*message);
    }
    EXPECT_EQ(got, (std::vector<std::string>{"a", "", "bcd"})) << cut;
  }
}

TEST(MailParser, RefusesAnAnnouncementAboveTheBound) {
  MailParser parser(3);
  parser.take(bytes_of(std::string_view("\0\0\0\4", 4)));
  EXPECT_THROW(parser.next(), ConnectionLost);
  MailParser huge;
  huge.take(bytes_of("\xff\xff\xff\xff"));
  EXPECT_THROW(huge.next(), ConnectionLost);
}

}  // namespace
}  // namespace lockstep::net
