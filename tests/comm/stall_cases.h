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

// `make`: four ranks, of which `missing` comes late to an all-reduce.
inline std::vector<std::string> lines_of_a_late_rank(const MakeGroups& make, int missing, std::size_t count,
                                                     CallOptions options = {}) {
  const LogLines lines;
  options.purpose = "bucket 2 of 3 (a … b)";
  on_threads(make(std::chrono::seconds(60)), [&](const Group& world) {
    std::vector<float> x(8);
    world.barrier();
    if (world.rank() == missing) wait_for_lines(lines, count);
    world.all_reduce(buffer(x), options);
  });
  return lines.with("has waited");
}

inline void expect_blame(const std::vector<std::string>& lines, const std::string& whom) {
  EXPECT_FALSE(lines.empty());
  for (const std::string& line : lines) {
    EXPECT_NE(line.find(" s for " + whom), std::string::npos) << line;
    EXPECT_NE(line.find("in all_reduce(f32 × 8, sum"), std::string::npos) << line;
    EXPECT_NE(line.find(", operation 2 of group world, bucket 2 of 3 (a … b)"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
}

}  // namespace lockstep::testing
