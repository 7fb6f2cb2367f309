#include "optim/state_pages.h"

#include <algorithm>

#include "base/round_up.h"
#include "offload/scratch_file.h"
#include "optim/layer_kernels.h"

namespace lockstep {
namespace {

constexpr std::size_t kCacheLine = 64;

// How many elements from `begin` on go into `room` bytes: all that are left, or as many as end with a block.
std::size_t fitting(const StateShape& shape, std::size_t begin, std::size_t room) {
  const std::size_t left = shape.elements.count() - begin;
  const std::size_t lines = room / shape.arrays / kCacheLine;
  const std::size_t most = lines * kCacheLine / shape.element_bytes;
  if (left <= most) return left;
  const std::size_t first = shape.elements.begin + begin;  // in the parameter
  const std::size_t end = (first + most) / kernel::kBlockElements * kernel::kBlockElements;
  return end > first ? end - first : 0;
}

}  // namespace

StatePages::StatePages(const std::vector<StateShape>& shapes, std::size_t page_bytes) {
  std::size_t used = 0;  // of the page that is being filled
  const auto end_page = [&] {
    if (used == 0) return;
    const std::size_t bytes = round_up(used, ScratchFile::kAlign);
    pages_.push_back({.at = bytes_, .bytes = bytes});
    bytes_ += bytes;
    used = 0;
    first_of_page_.push_back(segments_.size());
  };
  first_of_page_.push_back(0);
  for (std::size_t slice = 0; slice < shapes.size(); ++slice) {
    const StateShape& shape = shapes[slice];
    first_of_slice_.push_back(segments_.size());
    if (shape.arrays == 0) continue;
    for (std::size_t begin = 0; begin < shape.elements.count();) {
      const std::size_t count = fitting(shape, begin, page_bytes - used);
      if (count == 0) {
        end_page();
        continue;
      }
      const std::size_t stride = round_up(count * shape.element_bytes, kCacheLine);
      segments_.push_back({.slice = slice,
                           .page = pages_.size(),
                           .begin = begin,
                           .count = count,
                           .at = used,
                           .array_stride = stride});
      used += stride * shape.arrays;
      begin += count;
    }
  }
  end_page();
  first_of_slice_.push_back(segments_.size());
}

std::span<const StatePages::Segment> StatePages::in_page(std::size_t page) const {
  return std::span(segments_).subspan(first_of_page_[page], first_of_page_[page + 1] - first_of_page_[page]);
}

std::span<const StatePages::Segment> StatePages::of_slice(std::size_t slice) const {
  return std::span(segments_).subspan(first_of_slice_[slice],
                                      first_of_slice_[slice + 1] - first_of_slice_[slice]);
}

}  // namespace lockstep
