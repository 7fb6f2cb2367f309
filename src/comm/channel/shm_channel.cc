#include "comm/channel/shm_channel.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

using shm::kLine;
using shm::kRingBytes;
using shm::Ring;

// Published this often, so that the other side starts before the whole message is there.
constexpr std::size_t kChunkBytes = std::size_t{32} << 10;

std::size_t padded(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

ShmChannel::ShmChannel(shm::Meeting& meeting, Kind kind) : meeting_(meeting), kind_(static_cast<int>(kind)) {}

// The counters are read and written in one total order with Seat::asleep: either a peer that goes to sleep
// sees the new count, or this side sees it asleep and rings.
// Messages start at multiples of a cache line, so that no element is cut where the ring wraps.
bool ShmChannel::push(const Outgoing& send, Progress& progress) {
  Ring& ring = meeting_.control().ring(size(), rank(), send.peer, kind_);
  bool moved = false;
  while (progress.moved < send.bytes.size()) {
    const std::uint64_t written = ring.written.load(std::memory_order_relaxed);
    const std::uint64_t room = kRingBytes - (written - ring.read.load(std::memory_order_seq_cst));
    const std::size_t at = written % kRingBytes;
    const std::size_t left = send.bytes.size() - progress.moved;
    const std::size_t step = std::min({left, static_cast<std::size_t>(room), kRingBytes - at, kChunkBytes});
    if (step == 0) break;
    if (step < left && step % kLine != 0) break;  // wait for a whole line of room
    std::memcpy(ring.data + at, send.bytes.data() + progress.moved, step);
    ring.written.store(written + padded(step), std::memory_order_seq_cst);
    progress.moved += step;
    moved = true;
    meeting_.ring_doorbell(send.peer);
  }
  return moved;
}

bool ShmChannel::pull(const Incoming& recv, Progress& progress, const kernel::Reduction& reduction) {
  Ring& ring = meeting_.control().ring(size(), recv.peer, rank(), kind_);
  bool moved = false;
  while (progress.moved < recv.bytes.size()) {
    const std::uint64_t read = ring.read.load(std::memory_order_relaxed);
    const std::uint64_t there = ring.written.load(std::memory_order_seq_cst) - read;
    const std::size_t at = read % kRingBytes;
    const std::size_t left = recv.bytes.size() - progress.moved;
    const std::size_t step = std::min({left, static_cast<std::size_t>(there), kRingBytes - at, kChunkBytes});
    if (step == 0) break;
    recv.take(progress.moved, ring.data + at, step, reduction);
    ring.read.store(read + padded(step), std::memory_order_seq_cst);
    progress.moved += step;
    moved = true;
    meeting_.ring_doorbell(recv.peer);
  }
  return moved;
}

void ShmChannel::exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                          const kernel::Reduction& reduction) {
  sending_.assign(sends.size(), {});
  receiving_.assign(recvs.size(), {});
  const auto unfinished = [&] {
    for (std::size_t i = 0; i < sends.size(); ++i)
      if (sending_[i].moved < sends[i].bytes.size()) return true;
    for (std::size_t i = 0; i < recvs.size(); ++i)
      if (receiving_[i].moved < recvs[i].bytes.size()) return true;
    return false;
  };
  const auto turn = [&] {
    bool moved = false;
    for (std::size_t i = 0; i < sends.size(); ++i) moved |= push(sends[i], sending_[i]);
    for (std::size_t i = 0; i < recvs.size(); ++i) moved |= pull(recvs[i], receiving_[i], reduction);
    return moved;
  };
  const auto waiting_for = [&] {
    std::vector<int> ranks;
    for (std::size_t i = 0; i < sends.size(); ++i)
      if (sending_[i].moved < sends[i].bytes.size()) ranks.push_back(sends[i].peer);
    for (std::size_t i = 0; i < recvs.size(); ++i)
      if (receiving_[i].moved < recvs[i].bytes.size()) ranks.push_back(recvs[i].peer);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  };
  while (unfinished()) meeting_.wait_until(turn, waiting_for);
}

}  // namespace lockstep
