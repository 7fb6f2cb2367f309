// What the ranks of a test are told.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/thread_ranks.h"
#include "lockstep/comm/init.h"

namespace lockstep::testing {

// What each of `n` ranks was told; empty: nothing.
template <class Exception>
std::vector<std::string> told(int n, const std::function<void(const Group&)>& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(n));
  on_threads(thread_groups(n, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    try {
      body(group);
    } catch (const Exception& error) {
      messages[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  return messages;
}

inline void expect_in_all(const std::vector<std::string>& messages, const std::vector<std::string>& parts) {
  for (const std::string& message : messages)
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in '" << message << "'";
}

}  // namespace lockstep::testing
