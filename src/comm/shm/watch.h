// Notices the death of peers: one thread a process that sleeps on the peers' pidfds.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::shm {

class Watch {
 public:
  // `peers[r]` is rank r's pidfd, empty for those not watched. `died` is called once for each, from the
  // watching thread.
  Watch(std::vector<UniqueFd> peers, std::function<void(int rank)> died);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void run(const std::function<void(int)>& died);

  std::vector<UniqueFd> peers_;
  UniqueFd stop_;  // eventfd
  std::thread thread_;
};

}  // namespace lockstep::shm
