// The kinds of groups that cross a wire, all with four ranks, for tests of what every one of them promises.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "base/repeated.h"
#include "comm/fault_plan.h"
#include "comm/group_cases.h"
#include "comm/wire_ranks.h"

namespace lockstep::testing {

inline constexpr milliseconds kPatient{60'000};
// A difference between ranks or a rank that went is told within this.
inline constexpr milliseconds kTold{3000 * slowness()};

// `attempt`, which marks that one of its ranks was told later than that: a busy machine may have kept it, so
// then all of it is done again, twice at most.
inline void expect_told_soon(const std::function<void(std::atomic<bool>& late)>& attempt) {
  for (int i = 0; i < 3; ++i) {
    std::atomic<bool> late = false;
    attempt(late);
    if (!late || ::testing::Test::HasFailure()) return;
    say_repeated("a rank was told later than after " + std::to_string(kTold.count()) + " ms");
  }
  ADD_FAILURE() << "a rank was told later than after " << kTold.count() << " ms, three times in a row";
}

struct Wire {
  std::string name;
  std::function<std::vector<Group>(milliseconds timeout)> make;
  bool nodes = false;  // two engines, inside and across
};

inline std::ostream& operator<<(std::ostream& out, const Wire& wire) { return out << wire.name; }

// Called before any thread runs.
inline std::vector<Wire> wires() {
  using net::Security;
  ::setenv("LOCKSTEP_CACHE_DIR", "off", 1);  // no links are measured: many groups are made
  return {
      {"Plaintext", [](milliseconds t) { return tcp_groups(4, Security::plaintext, t); }},
      {"Tls", [](milliseconds t) { return tcp_groups(4, Security::tls, t); }},
      {"TwoByTwo",
       [](milliseconds t) {
         return node_groups({0, 0, 1, 1}, Security::plaintext, t);
       },
       true},
      {"OneApart",
       [](milliseconds t) {
         return node_groups({0, 0, 0, 1}, Security::tls, t);
       },
       true},
      {"Alternating",
       [](milliseconds t) {
         return node_groups({0, 1, 0, 1}, Security::plaintext, t);
       },
       true},
      {"TcpInside",
       [](milliseconds t) {
         return node_groups({0, 0, 1, 1}, Security::plaintext, t, "tcp+tcp");
       },
       true},
  };
}

class OverWires : public ::testing::TestWithParam<Wire> {};

inline std::string wire_name(const ::testing::TestParamInfo<Wire>& info) { return info.param.name; }

// Sets a variable while it lives; no other thread runs then.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

}  // namespace lockstep::testing
