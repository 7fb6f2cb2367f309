#include "comm/engine/ipc_round.h"

#include <algorithm>

#include "comm/cuda/ipc_memory.h"
#include "comm/cuda/reduce.h"
#include "comm/cuda/runtime.h"

namespace lockstep {
namespace {

using cuda::CudaRuntime;

constexpr std::size_t kStagingBytes = std::size_t{64} << 20;

kernel::Reduction reduction_of(const IpcRound& round) {
  Call told = round.call;
  told.divisor = round.divisor;
  return {.dtype = told.dtype,
          .op = told.op,
          .divisor = told.divisor_among(static_cast<int>(round.views.size()))};
}

// Where the round's elements of slice s lie in this rank's own output.
std::byte* own_out(const IpcRound& round, std::size_t s) {
  return static_cast<std::byte*>(round.call.out) + s * round.call.bytes() +
         round.begin * size_of(round.call.dtype);
}

// Slice s of everybody's input, reduced to this rank's output.
void reduce_here(const IpcRound& round, std::size_t s) {
  std::vector<const void*> ins;
  for (const IpcView& view : round.views) ins.push_back(view.in + s * view.stride);
  void* const out = own_out(round, 0);
  cuda::reduce_tree({&out, 1}, ins, round.count(), reduction_of(round), round.stream);
}

// This rank's part of everybody's input, reduced to that part of everybody's output. Parts begin at 256
// bytes, so that all but the last element of the last are moved in full width.
void reduce_part(const IpcRound& round) {
  const std::size_t size = size_of(round.call.dtype);
  const std::size_t unit = 256 / size;
  const std::size_t ranks = round.views.size();
  const std::size_t part = (round.count() + ranks * unit - 1) / (ranks * unit) * unit;
  const std::size_t first = std::min(round.count(), static_cast<std::size_t>(round.rank) * part);
  const std::size_t last = std::min(round.count(), first + part);
  std::vector<const void*> ins;
  std::vector<void*> outs;
  for (const IpcView& view : round.views) {
    ins.push_back(view.in + first * size);
    outs.push_back(view.out + first * size);
  }
  cuda::reduce_tree(outs, ins, last - first, reduction_of(round), round.stream);
}

void copy(const IpcRound& round, std::byte* to, const std::byte* from) {
  if (to == from) return;
  CudaRuntime::get().copy(to, from, round.count() * size_of(round.call.dtype), round.stream);
}

// Slice s of everybody's input, in rank order.
void collect(const IpcRound& round, std::size_t s) {
  for (std::size_t r = 0; r < round.views.size(); ++r)
    copy(round, own_out(round, r), round.views[r].in + s * round.views[r].stride);
}

}  // namespace

bool gives_slices(Collective what) {
  return what == Collective::reduce_scatter || what == Collective::scatter || what == Collective::all_to_all;
}

bool gives_input(const Call& call, int rank) {
  const bool from_root = call.what == Collective::broadcast || call.what == Collective::scatter;
  return !from_root || rank == call.root;
}

Call part_of(const Call& call) {
  Call part = call;
  part.device = {};
  part.stream = {};
  part.start = {};
  part.end = nullptr;
  part.algorithm.clear();
  part.in = nullptr;
  part.out = nullptr;
  part.whole = &call;
  part.flight = nullptr;
  part.timing = nullptr;
  return part;
}

void exchange_bytes(Engine& carrier, const Call& call, const void* mine, void* all, std::size_t bytes) {
  Call part = part_of(call);
  part.what = Collective::all_gather;
  part.in = mine;
  part.out = all;
  part.count = bytes;
  part.dtype = DType::u8;
  part.root = -1;
  carrier.run(part);
}

std::size_t at_once(const Call& call, int ranks) {
  const std::size_t slices = gives_slices(call.what) ? static_cast<std::size_t>(ranks) : 1;
  return std::max<std::size_t>(kStagingBytes / (slices * size_of(call.dtype)) / 256 * 256, 256);
}

bool goes_by_memory(const Call& call, int ranks) {
  const bool many = call.what == Collective::all_reduce || call.what == Collective::reduce_scatter ||
                    call.what == Collective::all_gather;
  if (!many || !call.start || ranks == 1 || call.count == 0) return false;
  const cuda::IpcMemory& memory = cuda::IpcMemory::get();
  return memory.find(call.in) != nullptr &&
         (call.what != Collective::all_reduce || memory.find(call.out) != nullptr);
}

std::array<cuda::CallOrder::Range, 2> memory_of(const Call& call, int ranks) {
  const std::size_t slices = call.what == Collective::all_gather ? static_cast<std::size_t>(ranks) : 1;
  return {cuda::CallOrder::range(call.in, input_bytes(call.what, call.bytes(), ranks)),
          cuda::CallOrder::range(call.out, slices * call.bytes())};
}

void put_round(const IpcRound& round) {
  const Call& call = round.call;
  const auto me = static_cast<std::size_t>(round.rank);
  const bool at_root = round.rank == call.root;
  const auto& root = [&]() -> const IpcView& { return round.views[static_cast<std::size_t>(call.root)]; };
  switch (call.what) {
    case Collective::all_reduce: return reduce_part(round);
    case Collective::reduce_scatter: return reduce_here(round, me);
    case Collective::reduce:
      if (at_root) reduce_here(round, 0);
      return;
    case Collective::all_gather: return collect(round, 0);
    case Collective::all_to_all: return collect(round, me);
    case Collective::gather:
      if (at_root) collect(round, 0);
      return;
    case Collective::broadcast:
      if (!at_root) copy(round, own_out(round, 0), root().in);
      return;
    case Collective::scatter: return copy(round, own_out(round, 0), root().in + me * root().stride);
    default: return;
  }
}

void put_alone(const Call& call) {
  if (call.count == 0) return;
  const IpcView own{.in = static_cast<std::byte*>(const_cast<void*>(call.in)),
                    .stride = call.bytes(),
                    .out = static_cast<std::byte*>(call.out)};
  put_round({.call = call,
             .stream = call.stream,
             .divisor = call.divisor,
             .rank = 0,
             .begin = 0,
             .end = call.count,
             .views = {own}});
}

}  // namespace lockstep
