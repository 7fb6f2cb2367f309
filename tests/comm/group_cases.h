// What tests of calls on a group share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <vector>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/base/clock.h"

namespace lockstep::testing {

using std::chrono::milliseconds;
using Floats = std::vector<float>;

inline milliseconds time_of(const std::function<void()>& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start);
}

// The group still does its work.
inline void expect_usable(const Group& group) {
  Floats x(5, static_cast<float>(group.rank() + 1));
  group.all_reduce(buffer(x));
  const int n = group.size();
  EXPECT_EQ(x, Floats(5, static_cast<float>(n * (n + 1)) / 2));
}

}  // namespace lockstep::testing
