#include "compress/carriage.h"

#include <algorithm>
#include <cstring>

namespace lockstep::compress {

Carriage::Carriage(const Group& group, Subtrees subtrees) : subtrees_(subtrees), rank_(group.rank()) {
  for (int r = 0; r < group.size(); ++r) {
    shares_.push_back(subtrees_of(r, group.size(), subtrees_));
    if (shares_.back().count > 0 && shares_.back().workers == 1) whole_ = true;
  }
}

bool Carriage::shared() const {
  return std::ranges::any_of(shares_, [](const SubtreeShare& share) { return share.workers > 1; });
}

std::size_t Carriage::part_bytes(std::size_t frame_bytes, int workers) const {
  const auto n = static_cast<std::size_t>(whole_ ? 1 : workers);
  return (frame_bytes + n - 1) / n;
}

std::size_t Carriage::piece_bytes(std::size_t frame_bytes) const {
  std::size_t longest = 0;
  for (const SubtreeShare& share : shares_)
    longest =
        std::max(longest, static_cast<std::size_t>(share.count) * part_bytes(frame_bytes, share.workers));
  return longest;
}

void Carriage::put(std::span<const std::byte> frames, std::size_t frame_bytes,
                   std::span<std::byte> piece) const {
  if (own().count == 0) return;
  const std::size_t part = part_bytes(frame_bytes, own().workers);
  if (part == frame_bytes) {
    if (own().place == 0) std::memcpy(piece.data(), frames.data(), frames.size());
    return;
  }
  const std::size_t begin = std::min(static_cast<std::size_t>(own().place) * part, frame_bytes);
  std::memcpy(piece.data(), frames.data() + begin, std::min(part, frame_bytes - begin));
}

std::vector<std::span<const std::byte>> Carriage::frames(std::span<const std::byte> pieces,
                                                         std::size_t frame_bytes,
                                                         std::vector<std::byte>& joined) const {
  const std::size_t piece = piece_bytes(frame_bytes);
  std::vector<std::span<const std::byte>> frames(static_cast<std::size_t>(existing()));
  if (!whole_) joined.resize(frames.size() * frame_bytes);
  for (std::size_t r = 0; r < shares_.size(); ++r) {
    const SubtreeShare& share = shares_[r];
    const auto first = static_cast<std::size_t>(share.first);
    if (whole_) {
      for (std::size_t k = 0; k < static_cast<std::size_t>(share.count) && share.place == 0; ++k)
        frames[first + k] = pieces.subspan(r * piece + k * frame_bytes, frame_bytes);
    } else if (share.count > 0) {
      const std::size_t part = part_bytes(frame_bytes, share.workers);
      const std::size_t begin = std::min(static_cast<std::size_t>(share.place) * part, frame_bytes);
      std::memcpy(joined.data() + first * frame_bytes + begin, pieces.data() + r * piece,
                  std::min(part, frame_bytes - begin));
      frames[first] = std::span(joined).subspan(first * frame_bytes, frame_bytes);
    }
  }
  return frames;
}

}  // namespace lockstep::compress
