// Which part of a bucket's tensors each rank adds up, in whole blocks of a tensor, and where that part of
// their payloads lies in what is sent to the rank.
#pragma once

#include <cstddef>
#include <vector>

#include "compress/codec/codec.h"
#include "compress/method.h"

namespace lockstep::compress {

struct Slices {
  struct Range {                         // of one tensor
    std::size_t i = 0;                   // its place among the members
    std::size_t first = 0, count = 0;    // elements; `first` is a multiple of the codec's granularity
    std::size_t payload = 0, bytes = 0;  // where it is in the tensor's payload
    std::size_t at = 0;                  // and in the slice
  };
  std::vector<std::vector<Range>> of_rank;
  std::size_t bytes = 0;  // of the longest

  // Equal parts for all ranks; or those that the exchange leaves them.
  Slices(const Codec& codec, const Flight& flight, const std::vector<std::size_t>& members, std::size_t ranks,
         Exchange::Leaves leaves);

 private:
  void add(const Codec& codec, std::size_t rank, std::size_t i, std::size_t first, std::size_t end);
};

}  // namespace lockstep::compress
