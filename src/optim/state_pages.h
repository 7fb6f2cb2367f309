// How an optimizer's state is laid out in a file: in pages that one transfer moves, each with all arrays of
// the elements that it holds, so that one page is enough to update them.
//
//   page    first of a[0:900]   second of a[0:900]   first of b   second of b   …
//
// An element belongs to one page. Where a parameter goes on in the next page, the cut is where a block of its
// norm ends (kernel::kBlockElements), so that a block is in one page, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/grad/gradient_source.h"
#include "offload/pager.h"

namespace lockstep {

// What is kept of one slice: `arrays` of so many elements each.
struct StateShape {
  ElementRange elements = {};  // of the parameter
  std::size_t arrays = 0;
  std::size_t element_bytes = 4;
};

class StatePages {
 public:
  // Some elements of a slice, in a page.
  struct Segment {
    std::size_t slice = 0;
    std::size_t page = 0;
    std::size_t begin = 0;  // counted from the slice's first
    std::size_t count = 0;
    std::size_t at = 0;            // of the first array, in the page
    std::size_t array_stride = 0;  // bytes from one array to the next
  };

  // Pages of at most `page_bytes`, 64 KiB or more.
  StatePages(const std::vector<StateShape>& shapes, std::size_t page_bytes);

  const std::vector<FilePage>& pages() const { return pages_; }
  std::span<const Segment> in_page(std::size_t page) const;
  std::span<const Segment> of_slice(std::size_t slice) const;
  // Of all arrays, gaps included.
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::vector<FilePage> pages_;
  std::vector<Segment> segments_;           // by page, and by slice too: both go up
  std::vector<std::size_t> first_of_page_;  // in segments_; one more than there are pages
  std::vector<std::size_t> first_of_slice_;
  std::uint64_t bytes_ = 0;
};

}  // namespace lockstep
