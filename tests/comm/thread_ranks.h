// Threads as ranks.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "lockstep/comm/init.h"

namespace lockstep::testing {

// Runs `body(rank's group)` on a thread per rank; rethrows the lowest rank's exception. The ranks' groups
// live until all threads are done.
inline void on_threads(std::vector<Group> groups, const std::function<void(const Group&)>& body) {
  std::vector<std::exception_ptr> errors(groups.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < groups.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          body(groups[r]);
        } catch (...) {
          errors[r] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::testing
