// Where proven connections wait between the gate's thread and whoever asks for them.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/fd.h"
#include "net/gate.h"

namespace lockstep::net {

class Arrivals {
 public:
  static constexpr std::size_t kMost = 4096;

  Arrivals();                       // throws SystemError
  bool full() const;                // then the gate turns newcomers away
  void add(Gate::Arrival arrival);  // wakes everybody who waits
  // The first whose hello is `hello`, or with null the first; an empty stream when the deadline passed.
  Gate::Arrival take(const std::string* hello, Deadline deadline);
  int ready_fd() const { return ready_.get(); }  // readable while somebody waits here

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Gate::Arrival> waiting_;
  UniqueFd ready_;
};

}  // namespace lockstep::net
