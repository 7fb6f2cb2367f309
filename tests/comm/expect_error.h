// Expectations about errors: the type, one line, and what the line names.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep::testing {

// Runs `body`, which must throw exactly an E whose one line holds every one of `parts`; gives the line.
template <class E>
std::string expect_error(const std::function<void()>& body, const std::vector<std::string>& parts = {}) {
  try {
    body();
  } catch (const Error& error) {
    const std::string line = error.what();
    EXPECT_EQ(typeid(error), typeid(E)) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    for (const std::string& part : parts)
      EXPECT_NE(line.find(part), std::string::npos) << "'" << part << "' in: " << line;
    return line;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// Like on_threads, but each thread owns its group and may let go of it early. Exceptions are failures.
inline void with_own_groups(std::vector<Group> groups, const std::function<void(Group)>& body) {
  std::vector<std::jthread> threads;
  for (Group& group : groups)
    threads.emplace_back([&body, own = std::move(group)]() mutable {
      try {
        body(std::move(own));
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
}

}  // namespace lockstep::testing
