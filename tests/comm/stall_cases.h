// A rank that waits for long says for whom, in what, and what it is for.
#pragma once

#include <algorithm>
#include <string>
#include <thread>

#include "comm/expect_error.h"
#include "comm/fault_plan.h"
#include "comm/log_lines.h"
#include "comm/names_cases.h"

namespace lockstep::testing {

// Until somebody has said so often that it waits, or nobody does for long.
inline void wait_for_lines(const LogLines& lines, std::size_t count) {
  const auto patience = Clock::now() + std::chrono::seconds(20 * slowness());
  while (lines.with("has waited").size() < count && Clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

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

// `make`: four ranks, of which `missing` comes late to an all-reduce; the lines that are said until `who`
// names it, and nobody else, as `whom`.
inline std::vector<std::string> expect_late_rank_blamed(const MakeGroups& make, int missing,
                                                        const std::string& who, const std::string& whom) {
  const LogLines lines;
  on_threads(make(std::chrono::seconds(60)), [&](const Group& world) {
    std::vector<float> x(8);
    world.barrier();
    if (world.rank() == missing) wait_for_line(lines, who + " has waited ", " s for " + whom);
    world.all_reduce(buffer(x), {.purpose = "bucket 2 of 3 (a … b)"});
  });
  const std::vector<std::string> said = lines.with("has waited");
  for (const std::string& line : said) {
    EXPECT_NE(line.find("in all_reduce(f32 × 8, sum"), std::string::npos) << line;
    EXPECT_NE(line.find(", operation 2 of group world, bucket 2 of 3 (a … b)"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
  return said;
}

// `make`: four ranks, of which `sender`, then called `whom`, sends late to `receiver`.
inline void expect_late_message_blamed(const MakeGroups& make, int receiver, int sender,
                                       const std::string& whom) {
  const LogLines lines;
  on_threads(make(std::chrono::seconds(60)), [&](const Group& world) {
    std::vector<float> x(8);
    world.barrier();
    if (world.rank() == receiver) world.recv(buffer(x), sender);
    if (world.rank() == sender) {
      wait_for_lines(lines, 1);
      world.send(buffer(x), receiver);
    }
  });
  const std::vector<std::string> said = lines.with("has waited");
  ASSERT_FALSE(said.empty());
  const std::string from = std::to_string(sender);
  EXPECT_TRUE(said[0].ends_with(" s for " + whom + " in recv(f32 × 8, from " + from + ") in group world"))
      << said[0];
}

}  // namespace lockstep::testing
