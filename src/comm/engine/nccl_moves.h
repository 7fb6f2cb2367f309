// A call on a GPU as NCCL's calls and our kernels, put on its stream.
#pragma once

#include "comm/call/call.h"
#include "comm/engine/nccl_link.h"
#include "lockstep/comm/memory.h"

namespace lockstep {

class NcclMoves {
 public:
  NcclMoves(NcclLink& link, int rank, int size) : link_(link), rank_(rank), size_(size) {}

  // Whether NCCL itself has that reduction.
  static bool native_has(const Call& call);

  // `call` with the divisor that all know. Throws what NCCL says.
  void native(const Call& call);
  void canonical(const Call& call);  // sums
  void message(const Call& call);

 private:
  struct Slice {
    std::size_t first;
    std::size_t count;
  };
  Slice slice_of(int rank, const Call& call) const;
  void exchange(const Call& call, const std::byte* in, std::byte* out);
  void gather_slices(const Call& call, const std::byte* own);
  void scatter_or_gather(const Call& call);
  std::byte* scratch(const Call& call, std::size_t bytes);

  NcclLink& link_;
  int rank_;
  int size_;
  std::shared_ptr<void> scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lockstep
