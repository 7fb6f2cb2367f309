#include "comm/engine/nccl_moves.h"

#include <algorithm>
#include <vector>

#include "comm/cuda/reduce.h"
#include "comm/cuda/runtime.h"

namespace lockstep {
namespace {

using cuda::CudaRuntime;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::f16: return ncclFloat16;
    case DType::bf16: return ncclBfloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::i8: return ncclInt8;
    case DType::u8: break;
  }
  return ncclUint8;
}

// avg is a sum that we divide: by any divisor, and with our rounding.
ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::product: return ncclProd;
    default: return ncclSum;
  }
}

cudaStream_t stream_of(const Call& call) { return static_cast<cudaStream_t>(call.stream.handle); }
const std::byte* in_of(const Call& call) { return static_cast<const std::byte*>(call.in); }
std::byte* out_of(const Call& call) { return static_cast<std::byte*>(call.out); }

kernel::Reduction reduction_of(const Call& call, int size) {
  return {.dtype = call.dtype, .op = call.op, .divisor = call.divisor_among(size)};
}

// The first error; else whether one is in progress.
ncclResult_t joined(ncclResult_t all, ncclResult_t one) {
  const bool bad = all != ncclSuccess && all != ncclInProgress;
  return bad || one == ncclSuccess ? all : one;
}

}  // namespace

bool NcclMoves::native_has(const Call& call) {
  return call.op != ReduceOp::bit_and && call.op != ReduceOp::bit_or;
}

std::byte* NcclMoves::scratch(const Call& call, std::size_t bytes) {
  if (scratch_bytes_ < bytes) {
    scratch_ = nullptr;  // goes when the stream is done with it
    scratch_bytes_ = 0;
    scratch_ = CudaRuntime::get().allocate(bytes, call.device.index);
    scratch_bytes_ = bytes;
  }
  return static_cast<std::byte*>(scratch_.get());
}

void NcclMoves::native(const Call& call) {
  const ncclDataType_t type = type_of(call.dtype);
  const ncclComm_t comm = link_.comm();
  const cudaStream_t stream = stream_of(call);
  const bool gets = call.what != Collective::reduce || call.root == rank_;
  switch (call.what) {
    case Collective::all_reduce:
      link_.put("ncclAllReduce", call.timeout, [&] {
        return ncclAllReduce(call.in, call.out, call.count, type, op_of(call.op), comm, stream);
      });
      break;
    case Collective::reduce_scatter:
      link_.put("ncclReduceScatter", call.timeout, [&] {
        return ncclReduceScatter(call.in, call.out, call.count, type, op_of(call.op), comm, stream);
      });
      break;
    case Collective::reduce:
      link_.put("ncclReduce", call.timeout, [&] {
        return ncclReduce(call.in, call.out, call.count, type, op_of(call.op), call.root, comm, stream);
      });
      break;
    case Collective::all_gather:
      link_.put("ncclAllGather", call.timeout,
                [&] { return ncclAllGather(call.in, call.out, call.count, type, comm, stream); });
      return;
    case Collective::broadcast:
      link_.put("ncclBroadcast", call.timeout,
                [&] { return ncclBroadcast(call.in, call.out, call.count, type, call.root, comm, stream); });
      return;
    default: return scatter_or_gather(call);
  }
  if (call.op != ReduceOp::avg || !gets) return;
  const void* const sum = call.out;
  void* const mean = call.out;
  cuda::reduce_tree({&mean, 1}, {&sum, 1}, call.count, reduction_of(call, size_), call.stream);
}

void NcclMoves::scatter_or_gather(const Call& call) {
  const std::size_t bytes = call.bytes();
  if (call.what == Collective::all_to_all) {
    const std::byte* in = in_of(call);
    const std::size_t all = bytes * static_cast<std::size_t>(size_);
    if (call.in == call.out) {  // else slices would be overwritten before they are sent
      std::byte* const copied = scratch(call, all);
      CudaRuntime::get().copy(copied, in, all, call.stream);
      in = copied;
    }
    return exchange(call, in, out_of(call));
  }
  const bool gathers = call.what == Collective::gather;
  const std::size_t own = static_cast<std::size_t>(rank_) * bytes;
  if (rank_ == call.root) {
    std::byte* const to = gathers ? out_of(call) + own : out_of(call);
    const std::byte* const from = gathers ? in_of(call) : in_of(call) + own;
    if (to != from) CudaRuntime::get().copy(to, from, bytes, call.stream);
  }
  link_.put_group(
      gathers ? "ncclSend and ncclRecv of gather" : "ncclSend and ncclRecv of scatter", call.timeout, [&] {
        const ncclComm_t comm = link_.comm();
        if (rank_ != call.root)
          return gathers ? ncclSend(call.in, bytes, ncclUint8, call.root, comm, stream_of(call))
                         : ncclRecv(call.out, bytes, ncclUint8, call.root, comm, stream_of(call));
        ncclResult_t all = ncclSuccess;
        for (int r = 0; r < size_; ++r) {
          const std::size_t at = static_cast<std::size_t>(r) * bytes;
          if (r == rank_) continue;
          all = joined(all, gathers ? ncclRecv(out_of(call) + at, bytes, ncclUint8, r, comm, stream_of(call))
                                    : ncclSend(in_of(call) + at, bytes, ncclUint8, r, comm, stream_of(call)));
        }
        return all;
      });
}

// Slice r of `in`, of call.count elements, to rank r; rank r's to slice r of `out`.
void NcclMoves::exchange(const Call& call, const std::byte* in, std::byte* out) {
  const std::size_t bytes = call.bytes();
  const std::size_t own = static_cast<std::size_t>(rank_) * bytes;
  if (in + own != out + own) CudaRuntime::get().copy(out + own, in + own, bytes, call.stream);
  link_.put_group("ncclSend and ncclRecv of slices", call.timeout, [&] {
    ncclResult_t all = ncclSuccess;
    for (int r = 0; r < size_; ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * bytes;
      if (r == rank_) continue;
      all = joined(all, ncclSend(in + at, bytes, ncclUint8, r, link_.comm(), stream_of(call)));
      all = joined(all, ncclRecv(out + at, bytes, ncclUint8, r, link_.comm(), stream_of(call)));
    }
    return all;
  });
}

// Of all_reduce and reduce: which elements a rank sums. Slices begin at 256 bytes.
NcclMoves::Slice NcclMoves::slice_of(int rank, const Call& call) const {
  const std::size_t unit = 256 / size_of(call.dtype);
  const std::size_t ranks = static_cast<std::size_t>(size_);
  const std::size_t part = (call.count + ranks * unit - 1) / (ranks * unit) * unit;
  const std::size_t first = std::min(call.count, static_cast<std::size_t>(rank) * part);
  return {first, std::min(call.count, first + part) - first};
}

void NcclMoves::canonical(const Call& call) {
  const auto ranks = static_cast<std::size_t>(size_);
  std::vector<const void*> ins;
  if (call.what == Collective::reduce_scatter) {
    std::byte* const all = scratch(call, call.bytes() * ranks);
    exchange(call, in_of(call), all);
    for (std::size_t r = 0; r < ranks; ++r) ins.push_back(all + r * call.bytes());
    void* const out = call.out;
    return cuda::reduce_tree({&out, 1}, ins, call.count, reduction_of(call, size_), call.stream);
  }
  const std::size_t size = size_of(call.dtype);
  const Slice own = slice_of(rank_, call);
  const std::size_t stride = slice_of(0, call).count * size;  // the largest
  std::byte* const all = scratch(call, stride * (ranks + 1));
  link_.put_group("ncclSend and ncclRecv of slices", call.timeout, [&] {
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      if (const Slice theirs = slice_of(r, call); theirs.count > 0)
        result = joined(result, ncclSend(in_of(call) + theirs.first * size, theirs.count * size, ncclUint8, r,
                                         link_.comm(), stream_of(call)));
      if (own.count > 0)
        result = joined(result, ncclRecv(all + static_cast<std::size_t>(r) * stride, own.count * size,
                                         ncclUint8, r, link_.comm(), stream_of(call)));
    }
    return result;
  });
  for (std::size_t r = 0; r < ranks; ++r)
    ins.push_back(r == static_cast<std::size_t>(rank_) ? in_of(call) + own.first * size : all + r * stride);
  const bool mine = call.what == Collective::all_reduce || call.root == rank_;
  void* const out = mine ? out_of(call) + own.first * size : all + ranks * stride;
  cuda::reduce_tree({&out, 1}, ins, own.count, reduction_of(call, size_), call.stream);
  gather_slices(call, static_cast<const std::byte*>(out));
}

// Everybody's reduced slice to all, or to the root.
void NcclMoves::gather_slices(const Call& call, const std::byte* own) {
  const std::size_t size = size_of(call.dtype);
  const bool to_all = call.what == Collective::all_reduce;
  link_.put_group("ncclSend and ncclRecv of sums", call.timeout, [&] {
    ncclResult_t all = ncclSuccess;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const Slice mine = slice_of(rank_, call);
      const Slice theirs = slice_of(r, call);
      if ((to_all || r == call.root) && mine.count > 0)
        all = joined(all, ncclSend(own, mine.count * size, ncclUint8, r, link_.comm(), stream_of(call)));
      if ((to_all || rank_ == call.root) && theirs.count > 0)
        all = joined(all, ncclRecv(out_of(call) + theirs.first * size, theirs.count * size, ncclUint8, r,
                                   link_.comm(), stream_of(call)));
    }
    return all;
  });
}

void NcclMoves::message(const Call& call) {
  const bool sends = call.what == Collective::send;
  link_.put(sends ? "ncclSend" : "ncclRecv", call.timeout, [&] {
    return sends ? ncclSend(call.in, call.bytes(), ncclUint8, call.root, link_.comm(), stream_of(call))
                 : ncclRecv(call.out, call.bytes(), ncclUint8, call.root, link_.comm(), stream_of(call));
  });
}

}  // namespace lockstep
