// Threads as members that form a group by themselves (form_group).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/free_port.h"
#include "lockstep/comm/init.h"

namespace lockstep::testing {

inline const InitOptions kAmple{.timeout = std::chrono::seconds(30),
                                .init_timeout = std::chrono::seconds(30)};

// Small regions: every member maps the arena by itself. Costs as they are built in: nothing is measured.
class FormsGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    set("LOCKSTEP_ARENA", "64M");
    set("LOCKSTEP_CACHE_DIR", "off");
  }
  void TearDown() override {
    for (const auto& [name, value] : before_)
      value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }
  void set(const std::string& name, const std::string& value) {
    const char* const old = std::getenv(name.c_str());
    before_.try_emplace(name, old == nullptr ? "" : old);
    ::setenv(name.c_str(), value.c_str(), 1);
  }

  std::map<std::string, std::string> before_;
};

// Runs each body on a thread of its own.
inline void together(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::jthread> threads;
  for (const auto& body : bodies)
    threads.emplace_back([&body] {
      try {
        body();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
}

inline void members(int size, const std::function<void(int rank)>& body) {
  std::vector<std::function<void()>> bodies;
  for (int r = 0; r < size; ++r) bodies.emplace_back([&body, r] { body(r); });
  together(bodies);
}

inline void expect_works(const Group& g) {
  const int n = g.size();
  EXPECT_EQ(g.all_reduce(g.rank() + 1), n * (n + 1) / 2);
  const CommMemory memory = g.allocate(400'000);
  auto* const x = memory.as<float>();
  std::fill_n(x, 100'000, static_cast<float>(g.rank()));
  g.all_reduce(Buffer{x, 100'000, DType::f32});
  EXPECT_EQ(x[99'999], static_cast<float>(n * (n - 1) / 2));
  std::vector<float> own(1000, 1);
  g.all_reduce_async(buffer(own)).wait();
  EXPECT_EQ(own.back(), static_cast<float>(n));
}

inline std::string free_endpoint() { return "127.0.0.1:" + std::to_string(free_port()); }

}  // namespace lockstep::testing
