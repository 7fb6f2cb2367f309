#include "compress/slices.h"

#include <algorithm>

#include "base/round_up.h"

namespace lockstep::compress {

Slices::Slices(const Codec& codec, const Flight& flight, const std::vector<std::size_t>& members,
               std::size_t ranks, Exchange::Leaves leaves)
    : of_rank(ranks) {
  const std::size_t block = codec.granularity();
  if (leaves == Exchange::Leaves::own_part) {
    const std::size_t part = flight.bucket.data.count / ranks;
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < members.size(); ++i) {
        const BucketTensor& t = flight.bucket.tensors[members[i]];
        const std::size_t begin = std::max(t.offset, r * part),
                          end = std::min(t.offset + t.count, (r + 1) * part);
        if (begin < end)
          add(codec, r, i, (begin - t.offset) / block * block,
              std::min(round_up(end - t.offset, block), t.count));
      }
    return;
  }
  std::size_t blocks = 0;
  for (const std::size_t m : members) blocks += round_up(flight.bucket.tensors[m].count, block) / block;
  const std::size_t each = (blocks + ranks - 1) / ranks;
  std::size_t before = 0;  // blocks
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::size_t count = flight.bucket.tensors[members[i]].count, own = round_up(count, block) / block;
    for (std::size_t b = 0; b < own;) {
      const std::size_t rank = (before + b) / each, end = std::min(own, (rank + 1) * each - before);
      add(codec, rank, i, b * block, std::min(end * block, count));
      b = end;
    }
    before += own;
  }
}

void Slices::add(const Codec& codec, std::size_t rank, std::size_t i, std::size_t first, std::size_t end) {
  std::vector<Range>& own = of_rank[rank];
  const std::size_t at = own.empty() ? 0 : round_up(own.back().at + own.back().bytes, std::size_t{8});
  const std::size_t payload = codec.payload_bytes(first);
  own.push_back({.i = i,
                 .first = first,
                 .count = end - first,
                 .payload = payload,
                 .bytes = codec.payload_bytes(end) - payload,
                 .at = at});
  bytes = std::max(bytes, round_up(at + own.back().bytes, std::size_t{8}));
}

}  // namespace lockstep::compress
