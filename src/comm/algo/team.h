// Some ranks of a channel, in order, as the peers of one phase.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "comm/call/range.h"
#include "comm/channel/channel.h"

namespace lockstep {

class Team {
 public:
  Team(Channel& channel, std::vector<int> ranks)
      : channel_(channel),
        ranks_(std::move(ranks)),
        me_(static_cast<int>(std::find(ranks_.begin(), ranks_.end(), channel.rank()) - ranks_.begin())) {}

  // Everybody.
  static Team whole(Channel& channel) {
    std::vector<int> ranks(static_cast<std::size_t>(channel.size()));
    for (int r = 0; r < channel.size(); ++r) ranks[static_cast<std::size_t>(r)] = r;
    return {channel, std::move(ranks)};
  }

  int me() const { return me_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int rank_of(int index) const { return ranks_[static_cast<std::size_t>(index)]; }

  void send(int to, std::span<const std::byte> bytes, const kernel::Reduction& reduction) {
    const Outgoing send{rank_of(to), bytes};
    channel_.exchange({&send, 1}, {}, reduction);
  }
  void recv(int from, std::span<std::byte> bytes, Arrival arrival, const kernel::Reduction& reduction) {
    const Incoming recv{rank_of(from), bytes, arrival};
    channel_.exchange({}, {&recv, 1}, reduction);
  }
  void swap(int to, std::span<const std::byte> out, int from, std::span<std::byte> in, Arrival arrival,
            const kernel::Reduction& reduction) {
    const Outgoing send{rank_of(to), out};
    const Incoming recv{rank_of(from), in, arrival};
    channel_.exchange({&send, 1}, {&recv, 1}, reduction);
  }

 private:
  Channel& channel_;
  std::vector<int> ranks_;
  int me_;
};

}  // namespace lockstep
