#include "lockstep/checkpoint/leader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "comm/all_meet.h"
#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

using testing::on_threads;

// What each rank says of `work`, and then that the group still works.
template <class Error>
std::vector<std::string> messages(const std::function<void()>& work) {
  std::vector<std::string> said(3);
  on_threads(thread_groups(3), [&](const Group& group) {
    try {
      run_on_leader(group, "working", work);
    } catch (const Error& error) {
      said[static_cast<std::size_t>(group.rank())] = error.what();
    }
    std::vector<std::int64_t> one = {1};
    group.all_reduce(buffer(one));
    EXPECT_EQ(one[0], 3);
  });
  return said;
}

TEST(Leader, WorksOnceAndAllWaitForIt) {
  std::atomic<int> done = 0;
  for (const int ranks : {1, 3})
    on_threads(thread_groups(ranks), [&](const Group& group) {
      done = 0;
      group.barrier();
      run_on_leader(group, "working", [&] { ++done; });
      EXPECT_EQ(done, 1);
      group.barrier();
    });
}

TEST(Leader, OthersMeetWhileItWorks) {
  // Longer than the timeout of any one call. Where a rank was late by that, again with more.
  using std::chrono::milliseconds;
  lockstep::testing::expect_all_meet(2, milliseconds(1500), [](const Group& group, milliseconds patience) {
    run_on_leader(group, "working", [&] { std::this_thread::sleep_for(patience + milliseconds(300)); });
  });
}

TEST(Leader, WhatItCanNotDoAllSay) {
  const std::vector<std::string> full(3, "cannot write x: No space left on device");
  EXPECT_EQ(messages<SystemError>([] { throw SystemError("cannot write x", ENOSPC); }), full);
  const std::vector<std::string> wrong(3, "no such thing");
  EXPECT_EQ(messages<UsageError>([] { throw UsageError("no such thing"); }), wrong);
  const auto other = messages<std::exception>([] { throw std::runtime_error("something else"); });
  EXPECT_EQ(other, std::vector<std::string>(3, "something else"));
}

TEST(Leader, WhatOneOfAllCanNotTellAllSay) {
  std::vector<std::string> said(3);
  on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    const int rank = group.rank();
    try {
      run_on_all(group, "working", [rank] {
        if (rank == 1) throw 7;
      });
    } catch (const SystemError& error) {
      said[static_cast<std::size_t>(rank)] = error.what();
    }
    group.barrier();  // it still works
  });
  EXPECT_EQ(said, std::vector<std::string>(3, "rank 1 failed in a way that it can't tell"));
}

}  // namespace
}  // namespace lockstep
