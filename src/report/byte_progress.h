// How far a command has come through many bytes.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/clock.h"
#include "report/progress.h"

namespace lockstep {

// On a terminal a line that changes several times a second; elsewhere nothing, since what the command prints
// says how far it is.
class ByteProgress {
 public:
  // `what` is being done: "verifying".
  ByteProgress(std::string what, std::uint64_t total_bytes);

  void add(std::uint64_t bytes);
  // Takes the line away, before anything else is printed; the next bytes bring it back.
  void clear() { progress_.clear(); }

 private:
  std::string what_;
  std::uint64_t total_bytes_;
  std::uint64_t done_bytes_ = 0;
  bool wanted_;
  Clock::time_point next_;
  Progress progress_;
};

}  // namespace lockstep
