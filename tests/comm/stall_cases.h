// A rank that waits for long says for whom, in what, and what it is for.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "base/repeated.h"
#include "comm/expect_error.h"
#include "comm/fault_plan.h"
#include "comm/log_lines.h"
#include "comm/names_cases.h"

namespace lockstep::testing {

// Until a line begins with `begin` and holds `part`, which is a failure when it does not come. Lines before
// it may differ: on a busy machine others than those that the test keeps up are late at first.
inline void wait_for_line(const LogLines& lines, const std::string& begin, const std::string& part) {
  const auto patience = Clock::now() + std::chrono::seconds(20 * slowness());
  std::string all;
  do {
    all.clear();
    for (const std::string& line : lines.with("has waited")) {
      if (line.starts_with(begin) && line.find(part) != std::string::npos) return;
      all += line + "\n";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (Clock::now() < patience);
  ADD_FAILURE() << "no line '" << begin << " … " << part << "' among\n" << all;
}

// Sets the threshold while it lives; no other thread runs then.
class WarnAfter {
 public:
  explicit WarnAfter(const std::string& seconds) { ::setenv("LOCKSTEP_WARN_AFTER_S", seconds.c_str(), 1); }
  ~WarnAfter() { ::unsetenv("LOCKSTEP_WARN_AFTER_S"); }
  WarnAfter(const WarnAfter&) = delete;
  WarnAfter& operator=(const WarnAfter&) = delete;
};

// `attempt` in which waits of `after_s` are told, and which says what was wrong with the lines. A rank that
// is late by chance is named too: then all of it is done again, with twice the time.
inline void expect_said_rightly(double after_s, const std::function<std::string()>& attempt) {
  constexpr double kMost = 9;
  for (;; after_s *= 2) {
    const WarnAfter soon(std::to_string(after_s));
    const std::string wrong = attempt();
    if (::testing::Test::HasFailure() || wrong.empty()) return;
    if (after_s < kMost) {
      say_repeated(wrong + " with waits of " + std::to_string(after_s) + " s");
      continue;
    }
    ADD_FAILURE() << wrong << "\nwith waits of " << after_s << " s";
    return;
  }
}

// Those of what follows the first barrier, to which a thread that starts late may be late as well.
inline std::vector<std::string> said_after_barrier(const LogLines& lines) {
  std::vector<std::string> said = lines.with("has waited");
  std::erase_if(said, [](const std::string& line) {
    return line.find(" in barrier(), operation 1 of group world") != std::string::npos;
  });
  return said;
}

// `make`: four ranks, of which `missing` comes late to an all-reduce; the lines that are said of it until
// `who` names it, and nobody else, as `whom`.
inline std::vector<std::string> expect_late_rank_blamed(const MakeGroups& make, int missing,
                                                        const std::string& who, const std::string& whom) {
  const LogLines lines;
  on_threads(make(std::chrono::seconds(60)), [&](const Group& world) {
    std::vector<float> x(8);
    world.barrier();
    if (world.rank() == missing)
      wait_for_line(lines, who + " has waited ", " s for " + whom + " all_reduce(");
    world.all_reduce(buffer(x), {.purpose = "bucket 2 of 3 (a … b)"});
  });
  std::vector<std::string> said = said_after_barrier(lines);
  for (const std::string& line : said) {
    EXPECT_NE(line.find("in all_reduce(f32 × 8, sum"), std::string::npos) << line;
    EXPECT_NE(line.find(", operation 2 of group world, bucket 2 of 3 (a … b)"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
  return said;
}

// `make`: four ranks, of which `sender`, then called `whom`, sends late to `receiver`. A line that says
// anything else; empty: none does.
inline std::string wrong_of_late_message(const MakeGroups& make, int receiver, int sender,
                                         const std::string& whom) {
  const LogLines lines;
  const std::string who = "rank " + std::to_string(receiver) + " has waited ";
  const std::string call = " in recv(f32 × 8, from " + std::to_string(sender) + ") in group world";
  on_threads(make(std::chrono::seconds(60)), [&](const Group& world) {
    std::vector<float> x(8);
    world.barrier();
    if (world.rank() == receiver) world.recv(buffer(x), sender);
    if (world.rank() == sender) {
      wait_for_line(lines, who, " s for " + whom + call);
      world.send(buffer(x), receiver);
    }
  });
  for (const std::string& line : said_after_barrier(lines))
    if (!line.starts_with(who) || !line.ends_with(" s for " + whom + call)) return line;
  return "";
}

}  // namespace lockstep::testing
