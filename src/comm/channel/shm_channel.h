// The channel over shared memory: one ring of bytes per ordered pair of ranks. The receiver folds straight
// out of the ring, so a message is copied once. Sender and receiver work on different parts of the ring at
// the same time.
#pragma once

#include <vector>

#include "comm/channel/channel.h"
#include "comm/shm/meeting.h"

namespace lockstep {

class ShmChannel : public Channel {
 public:
  enum class Kind { collective = 0, point_to_point = 1 };

  ShmChannel(shm::Meeting& meeting, Kind kind);

  int rank() const override { return meeting_.rank(); }
  int size() const override { return meeting_.size(); }
  void exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                const kernel::Reduction& reduction) override;

 private:
  struct Progress {
    std::size_t moved = 0;
  };
  bool push(const Outgoing& send, Progress& progress);
  bool pull(const Incoming& recv, Progress& progress, const kernel::Reduction& reduction);

  shm::Meeting& meeting_;
  int kind_;
  std::vector<Progress> sending_;  // kept between calls: no allocation on the way
  std::vector<Progress> receiving_;
};

}  // namespace lockstep
