#include "lockstep/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <system_error>

#include "base/start_thread.h"

namespace lockstep {
namespace {

TEST(Error, EveryKindHasItsName) {
  EXPECT_STREQ(to_string(ErrorKind::usage), "usage");
  EXPECT_STREQ(to_string(ErrorKind::peer), "peer");
  EXPECT_STREQ(to_string(ErrorKind::timeout), "timeout");
  EXPECT_STREQ(to_string(ErrorKind::mismatch), "mismatch");
  EXPECT_STREQ(to_string(ErrorKind::system), "system");
  EXPECT_STREQ(to_string(static_cast<ErrorKind>(99)), "unknown");
}

template <class Thrown>
ErrorKind kind_when_caught_as_root(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "why");
    return error.kind();
  }
}

TEST(Error, EveryTypeIsCaughtAsTheRootWithItsKindAndMessage) {
  EXPECT_EQ(kind_when_caught_as_root(UsageError("why")), ErrorKind::usage);
  EXPECT_EQ(kind_when_caught_as_root(PeerError(3, "why")), ErrorKind::peer);
  EXPECT_EQ(kind_when_caught_as_root(TimeoutError({1}, "why")), ErrorKind::timeout);
  EXPECT_EQ(kind_when_caught_as_root(MismatchError("why")), ErrorKind::mismatch);
  EXPECT_EQ(kind_when_caught_as_root(SystemError("why")), ErrorKind::system);
}

TEST(Error, CarriesTheRanksConcerned) {
  EXPECT_EQ(PeerError(3, "why").rank(), 3);
  EXPECT_EQ(TimeoutError({1, 4}, "why").missing(), (std::vector<int>{1, 4}));
}

TEST(Error, OfTheSystemSaysWhatTheSystemSaid) {
  EXPECT_STREQ(SystemError("cannot open x", ENOENT).what(), "cannot open x: No such file or directory");
}

TEST(Error, OfAThreadSaysWhatTheSystemDoesNot) {
  const auto refused = [](int number) {
    return no_thread("a thread", std::system_error(number, std::generic_category()));
  };
  EXPECT_EQ(refused(EAGAIN),
            "cannot start a thread: not enough memory for its stack, or too many processes (ulimit -u, or a "
            "container's limit)");
  EXPECT_EQ(refused(EPERM), "cannot start a thread: Operation not permitted");
}

TEST(Error, IsAStandardException) {
  try {
    throw MismatchError("why");
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "why");
  }
}

}  // namespace
}  // namespace lockstep
