// Who is missing when somebody's time is over is named, and with it whoever is merely late by then.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/repeated.h"
#include "lockstep/base/error.h"

namespace lockstep::testing {

// What the ranks of one attempt saw, a line each; they say it from threads of their own.
class Seen {
 public:
  void note(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  // Ranks that an error calls missing: "1 3", and `more` behind them.
  void note(const std::vector<int>& missing, const std::string& more = "") {
    std::string line;
    for (const int rank : missing) line += (line.empty() ? "" : " ") + std::to_string(rank);
    note(line + more);
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

// Notes whom `error` calls missing, all of whom its line must name; gives the line.
inline std::string note_missing(Seen& seen, const TimeoutError& error) {
  seen.note(error.missing());
  const std::string line = error.what();
  const std::string named = line.substr(std::min(line.find("missing: "), line.size()));
  for (const int rank : error.missing())
    EXPECT_NE(named.find("rank " + std::to_string(rank)), std::string::npos) << line;
  return line;
}

// `attempt` in which `count` ranks wait for `patience`, each of which must see `expected`. How soon the
// others come is the machine's affair: where one of them was late all of it is done again, with four times
// the patience.
inline void expect_seen(const std::string& expected, std::size_t count, std::chrono::milliseconds patience,
                        const std::function<void(std::chrono::milliseconds patience, Seen& seen)>& attempt) {
  constexpr std::chrono::seconds kMost{20};
  for (;; patience *= 4) {
    Seen seen;
    attempt(patience, seen);
    const std::vector<std::string> wanted(count, expected);
    if (::testing::Test::HasFailure() || seen.lines() == wanted) return;
    if (patience < kMost) {
      say_repeated(::testing::PrintToString(seen.lines()) + " with " + std::to_string(patience.count()) +
                   " ms of patience");
      continue;
    }
    EXPECT_EQ(seen.lines(), wanted) << "with " << patience.count() << " ms of patience";
    return;
  }
}

}  // namespace lockstep::testing
