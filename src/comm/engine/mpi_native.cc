#include "comm/engine/mpi_native.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "comm/engine/vendor.h"

namespace lockstep {
namespace {

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return MPI_DOUBLE;
    case DType::f32: return MPI_FLOAT;
    case DType::f16:
    case DType::bf16: return MPI_UINT16_T;  // moved, never reduced (see refuses)
    case DType::i64: return MPI_INT64_T;
    case DType::i32: return MPI_INT32_T;
    case DType::i8: return MPI_INT8_T;
    case DType::u8: return MPI_UINT8_T;
  }
  throw UsageError("dtype " + std::to_string(static_cast<int>(dtype)) + " is none of ours");
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return MPI_SUM;
    case ReduceOp::min: return MPI_MIN;
    case ReduceOp::max: return MPI_MAX;
    case ReduceOp::product: return MPI_PROD;
    case ReduceOp::bit_and: return MPI_BAND;
    case ReduceOp::bit_or: return MPI_BOR;
  }
  throw UsageError("operation " + std::to_string(static_cast<int>(op)) + " is none of ours");
}

// MPI's counts are int. These collectives work element by element and are cut into pieces.
bool can_be_cut(Collective what) {
  return what == Collective::all_reduce || what == Collective::reduce || what == Collective::broadcast ||
         what == Collective::send || what == Collective::recv;
}

// A copy of more at a time would only take memory.
constexpr std::size_t kMostStagedBytes = std::size_t{64} << 20;

// The bytes that a rank brings to a call and gets from it.
struct Flow {
  std::size_t given = 0;
  std::size_t taken = 0;
};

Flow flow_of(const Call& call, int rank, int size) {
  const std::size_t one = call.bytes();
  const std::size_t all = one * static_cast<std::size_t>(size);
  const bool root = rank == call.root;
  switch (call.what) {
    case Collective::all_reduce: return {one, one};
    case Collective::reduce: return {one, root ? one : 0};
    case Collective::broadcast: return {root ? one : 0, root ? 0 : one};
    case Collective::send: return {one, 0};
    case Collective::recv: return {0, one};
    case Collective::reduce_scatter: return {all, one};
    case Collective::all_gather: return {one, all};
    case Collective::gather: return {one, root ? all : 0};
    case Collective::scatter: return {root ? all : 0, one};
    case Collective::all_to_all: return {all, all};
    default: return {};
  }
}

}  // namespace

std::vector<Offer> MpiNative::offers(bool multiple) {
  constexpr SetOf<ReduceOp> bits = {ReduceOp::bit_and, ReduceOp::bit_or};
  constexpr SetOf<ReduceOp> arithmetic = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max,
                                          ReduceOp::product};
  // Open MPI's vectorised sums of bytes stop at the largest value, where ours wrap; MPICH 4.0 compares
  // unsigned bytes as signed ones.
  const std::vector<Lack> lacks = {{kEveryOp, {DType::f16, DType::bf16}, "MPI itself has no"},
                                   {bits, {DType::f64, DType::f32}, "MPI itself has no"},
                                   {arithmetic, {DType::i8, DType::u8}, "MPI libraries differ in"}};
  const auto offer = [&](const char* name) {
    return Offer{.name = name, .collectives = {}, .canonical = false, .lacks = lacks};
  };
  std::vector<Offer> offers;
  for (const bool blocking : {true, false}) {
    Offer cut = offer(blocking ? "blocking" : "native");
    Offer whole = cut;
    whole.at_most_count = INT_MAX;
    for (int i = 0; i < kCollectives; ++i) {
      const auto what = static_cast<Collective>(i);
      if (what == Collective::split || (blocking && is_message(what))) continue;
      (can_be_cut(what) ? cut : whole).collectives.add(what);
    }
    for (Offer* const one : {&cut, &whole}) {
      one->learns_divisor = !blocking;
      // One thread inside such a call would keep all others out.
      if (blocking && !multiple) one->not_here = "it needs MPI_THREAD_MULTIPLE, which this MPI does not give";
      offers.push_back(std::move(*one));
    }
  }
  return offers;
}

template <class Post>
void MpiNative::request(const char* what, std::size_t bytes, Post&& post) {
  if (calls_ == Calls::blocking) {
    if (const int code = post(nullptr); code != MPI_SUCCESS) mpi::raise(code, what);
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  mpi::call(what, [&] { return post(&request); });
  channel_.wait(request, what, bytes);
}

void MpiNative::run(const Call& call, Calls calls) {
  calls_ = calls;
  if (call.what == Collective::barrier)
    return request("MPI_Ibarrier", 0, [&](MPI_Request* r) {
      return r == nullptr ? MPI_Barrier(channel_.comm()) : MPI_Ibarrier(channel_.comm(), r);
    });
  if (!can_be_cut(call.what)) {
    if (calls == Calls::blocking) return whole(call);
    return staged(call, [&](const Call& mine) { whole(mine); });
  }
  // Pieces are the same on every rank because the count is. Zero elements still make one call.
  const std::size_t element = size_of(call.dtype);
  const std::size_t most = calls == Calls::blocking ? std::size_t{1} << 30 : kMostStagedBytes / element;
  std::size_t done = 0;
  do {
    const std::size_t count = std::min(most, call.count - done);
    if (calls == Calls::blocking) {
      piece(call, done * element, static_cast<int>(count));
    } else {
      Call part = call;
      part.count = count;
      if (call.in != nullptr) part.in = static_cast<const std::byte*>(call.in) + done * element;
      if (call.out != nullptr) part.out = static_cast<std::byte*>(call.out) + done * element;
      staged(part, [&](const Call& mine) { piece(mine, 0, static_cast<int>(count)); });
    }
    done += count;
  } while (done < call.count);
}

// `body` on copies of what this rank gives, and what it gets back from there.
template <class Body>
void MpiNative::staged(const Call& call, Body&& body) {
  const Flow flow = flow_of(call, channel_.rank(), channel_.size());
  // Never empty: MPI libraries look at the addresses of nothing too.
  const auto fit = [](std::vector<std::byte>& room, std::size_t bytes) {
    if (room.size() < std::max<std::size_t>(bytes, 64)) room.resize(std::max<std::size_t>(bytes, 64));
    return room.data();
  };
  Call mine = call;
  const bool broadcast = call.what == Collective::broadcast;
  mine.in = fit(stage_->in, broadcast ? 0 : flow.given);
  mine.out = fit(stage_->out, broadcast ? call.bytes() : flow.taken);
  void* const from = broadcast ? mine.out : stage_->in.data();
  if (flow.given != 0) std::memcpy(from, broadcast ? call.out : call.in, flow.given);
  try {
    body(mine);
  } catch (...) {
    channel_.keep(stage_);
    stage_ = std::make_shared<Stage>();
    throw;
  }
  if (flow.taken != 0) std::memcpy(call.out, mine.out, flow.taken);
}

void MpiNative::piece(const Call& call, std::size_t offset, int count) {
  const MPI_Comm comm = channel_.comm();
  const MPI_Datatype type = mpi_type(call.dtype);
  const auto* in = call.in == nullptr ? nullptr : static_cast<const std::byte*>(call.in) + offset;
  auto* out = call.out == nullptr ? nullptr : static_cast<std::byte*>(call.out) + offset;
  const bool in_place = in == out && in != nullptr;
  switch (call.what) {
    case Collective::all_reduce:
      return request("MPI_Iallreduce", call.bytes(), [&](MPI_Request* r) {
        return r == nullptr
                   ? MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, count, type, mpi_op(call.op), comm)
                   : MPI_Iallreduce(in_place ? MPI_IN_PLACE : in, out, count, type, mpi_op(call.op), comm, r);
      });
    case Collective::reduce: return reduce(call, in, out, count);
    case Collective::broadcast:
      return request("MPI_Ibcast", call.bytes(), [&](MPI_Request* r) {
        return r == nullptr ? MPI_Bcast(out, count, type, call.root, comm)
                            : MPI_Ibcast(out, count, type, call.root, comm, r);
      });
    case Collective::send: {
      MPI_Request request = MPI_REQUEST_NULL;
      mpi::call("MPI_Isend",
                [&] { return MPI_Isend(in, count, type, call.root, mpi::kNativeTag, comm, &request); });
      return channel_.wait(request, "MPI_Isend", call.bytes(), {call.root});
    }
    case Collective::recv: return receive(call, out, count);
    default: throw UsageError(std::string("mpi can't cut ") + to_string(call.what));
  }
}

void MpiNative::reduce(const Call& call, const std::byte* in, std::byte* out, int count) {
#ifdef MPICH_NUMVERSION
  constexpr bool kInPlace = false;  // MPICH 4.0 reads from the address that MPI_IN_PLACE is
#else
  constexpr bool kInPlace = true;
#endif
  const bool root = channel_.rank() == call.root;
  const void* source = in;
  if (root && in == out && in != nullptr) {
    source = MPI_IN_PLACE;
    if (!kInPlace) {
      const std::size_t bytes = static_cast<std::size_t>(count) * size_of(call.dtype);
      if (scratch_.bytes() < bytes) scratch_ = private_memory(bytes);
      source = std::memcpy(scratch_.data(), in, bytes);
    }
  }
  // Elsewhere than on root the output is not significant; MPI checks that the two differ.
  void* sink = root ? out : nullptr;
  const MPI_Datatype type = mpi_type(call.dtype);
  const MPI_Comm comm = channel_.comm();
  request("MPI_Ireduce", call.bytes(), [&](MPI_Request* r) {
    return r == nullptr ? MPI_Reduce(source, sink, count, type, mpi_op(call.op), call.root, comm)
                        : MPI_Ireduce(source, sink, count, type, mpi_op(call.op), call.root, comm, r);
  });
}

void MpiNative::receive(const Call& call, std::byte* out, int count) {
  const MPI_Datatype type = mpi_type(call.dtype);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Status status;
  mpi::call("MPI_Irecv", [&] {
    return MPI_Irecv(out, count, type, call.root, mpi::kNativeTag, channel_.comm(), &request);
  });
  channel_.wait(request, "MPI_Irecv", call.bytes(), {call.root}, &status);
  int got = 0;
  mpi::call("MPI_Get_count", [&] { return MPI_Get_count(&status, type, &got); });
  if (got != count)
    throw MismatchError(call.describe() + " from " + channel_.naming()->get().named(call.root) + " got " +
                        std::to_string(got) + " elements");
}

void MpiNative::whole(const Call& call) {
  const MPI_Comm comm = channel_.comm();
  const MPI_Datatype type = mpi_type(call.dtype);
  const int count = static_cast<int>(call.count);
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  const bool root = channel_.rank() == call.root;
  const std::size_t own = static_cast<std::size_t>(channel_.rank()) * call.bytes();  // this rank's slice
  const std::size_t bytes = call.bytes() * static_cast<std::size_t>(channel_.size());
  switch (call.what) {
    case Collective::reduce_scatter: return reduce_scatter(call);
    case Collective::all_gather: {
      const void* source = in == out + own ? MPI_IN_PLACE : static_cast<const void*>(in);
      return request("MPI_Iallgather", bytes, [&](MPI_Request* r) {
        return r == nullptr ? MPI_Allgather(source, count, type, out, count, type, comm)
                            : MPI_Iallgather(source, count, type, out, count, type, comm, r);
      });
    }
    case Collective::gather: {
      const void* source = root && in == out + own ? MPI_IN_PLACE : static_cast<const void*>(in);
      return request("MPI_Igather", bytes, [&](MPI_Request* r) {
        return r == nullptr
                   ? MPI_Gather(source, count, type, root ? out : nullptr, count, type, call.root, comm)
                   : MPI_Igather(source, count, type, root ? out : nullptr, count, type, call.root, comm, r);
      });
    }
    case Collective::scatter: {
      void* sink = root && in + own == out ? MPI_IN_PLACE : static_cast<void*>(out);
      return request("MPI_Iscatter", bytes, [&](MPI_Request* r) {
        return r == nullptr
                   ? MPI_Scatter(root ? in : nullptr, count, type, sink, count, type, call.root, comm)
                   : MPI_Iscatter(root ? in : nullptr, count, type, sink, count, type, call.root, comm, r);
      });
    }
    case Collective::all_to_all: {
      const void* source = in == out ? MPI_IN_PLACE : static_cast<const void*>(in);
      return request("MPI_Ialltoall", bytes, [&](MPI_Request* r) {
        return r == nullptr ? MPI_Alltoall(source, count, type, out, count, type, comm)
                            : MPI_Ialltoall(source, count, type, out, count, type, comm, r);
      });
    }
    default: throw UsageError(std::string("mpi has no ") + to_string(call.what));
  }
}

// MPI's "in place" leaves the result at the start of the input; ours is the rank's slice of it, which MPI
// takes for a forbidden overlap. Then the result goes through memory of its own.
void MpiNative::reduce_scatter(const Call& call) {
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  const std::size_t bytes = call.bytes() * static_cast<std::size_t>(channel_.size());
  const bool inside = call.count != 0 && out >= in && out < in + bytes;
  if (inside && scratch_.bytes() < call.bytes()) scratch_ = private_memory(call.bytes());
  void* result = inside ? scratch_.data() : out;
  request("MPI_Ireduce_scatter_block", bytes, [&](MPI_Request* r) {
    return r == nullptr
               ? MPI_Reduce_scatter_block(in, result, static_cast<int>(call.count), mpi_type(call.dtype),
                                          mpi_op(call.op), channel_.comm())
               : MPI_Ireduce_scatter_block(in, result, static_cast<int>(call.count), mpi_type(call.dtype),
                                           mpi_op(call.op), channel_.comm(), r);
  });
  if (inside) std::memcpy(out, result, call.bytes());
}

}  // namespace lockstep
