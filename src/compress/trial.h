// What a method would make of a tensor of one worker: how long that takes, and how far off it is.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep::compress {

struct Found {
  double seconds = 0, elements = 0;
  double error = 0, meant = 0;  // squares: of what is missing or too much, of what was to be sent

  // Another tensor's.
  Found& operator+=(const Found& other);
  // The same tensor's once more: the faster of both counts, since what else runs on the machine only takes
  // time.
  void again(const Found& other);
  double relative_error() const;  // 0 where nothing was to be sent
};

// Of the largest tensors so many elements, whole rows of them, are tried.
inline constexpr std::size_t kMostTried = std::size_t{1} << 20;

// Nothing, with no element, where the method makes no such tensor smaller. `alone`: a group of this worker by
// itself.
Found try_method(const std::string& method, const Group& alone, const std::vector<std::int64_t>& sizes,
                 std::span<const float> values);

}  // namespace lockstep::compress
