// Who carries which subtree of the lanes' tree in a group of workers, and how what each subtree has to say
// goes to all of them: by one all-gather, in which every rank's piece is as long as the longest.
//
//   a worker with k subtrees    k frames: k messages' worth of bytes, where one worker a subtree sends one
//   n workers with one subtree  they have summed it up densely, all hold the same frame, and each sends an
//   n-th
//
// Pieces that are shorter are padded: 3 workers with 4 subtrees send 2 frames each, 6 in place of 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/grad/subtrees.h"

namespace lockstep::compress {

// Up to so many subtrees payloads of a method with two forms (scattered.h) are gathered, which rounds once,
// and takes one call. With another number the bits are others: a run keeps that which it began with.
inline constexpr int kMostGathered = 4;

class Carriage {
 public:
  Carriage() = default;
  Carriage(const Group& group, Subtrees subtrees);

  const Subtrees& subtrees() const { return subtrees_; }
  int existing() const { return subtrees_.existing(); }
  const SubtreeShare& own() const { return shares_[static_cast<std::size_t>(rank_)]; }
  int ranks() const { return static_cast<int>(shares_.size()); }
  // Does any worker carry only a part of a subtree?
  bool shared() const;
  // Of several workers with the same subtree the first speaks for it.
  bool speaks() const { return own().count > 0 && own().place == 0; }

  // In place of kMostGathered, which it never is below.
  int most_gathered() const { return most_gathered_; }
  void gather_up_to(int subtrees) { most_gathered_ = subtrees; }

  // Bytes of a rank's piece when a subtree's frame has so many.
  std::size_t piece_bytes(std::size_t frame_bytes) const;
  // This rank's part of its subtrees' frames, one behind the other, as its piece.
  void put(std::span<const std::byte> frames, std::size_t frame_bytes, std::span<std::byte> piece) const;
  // Every existing subtree's frame, from all ranks' pieces. Those that came in parts are put together in
  // `joined`, which lives as long as the result.
  std::vector<std::span<const std::byte>> frames(std::span<const std::byte> pieces, std::size_t frame_bytes,
                                                 std::vector<std::byte>& joined) const;

 private:
  // Bytes that one of `workers` sends of a frame.
  std::size_t part_bytes(std::size_t frame_bytes, int workers) const;

  Subtrees subtrees_;
  int rank_ = 0;
  int most_gathered_ = kMostGathered;
  bool whole_ = false;                // somebody sends a whole frame anyway: then nobody sends parts
  std::vector<SubtreeShare> shares_;  // by rank
};

}  // namespace lockstep::compress
