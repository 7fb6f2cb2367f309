#include "comm/engine/mpi_engine.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <array>
#include <climits>
#include <map>

#include "comm/engine/vendor.h"

namespace lockstep {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw SystemError(std::string(what) + ": " + std::string(text.data(), static_cast<std::size_t>(length)));
}

// MPI is initialised once a process and can't be started again after its end, so its lifetime is the
// process's: the one piece of global state, and it is MPI's.
class Runtime {
 public:
  static Runtime& get() {
    static Runtime runtime;
    return runtime;
  }
  // After a failure MPI_Finalize may wait for ever for a peer.
  void failed() { finalize_ = false; }

 private:
  Runtime() {
    int initialized = 0;
    check(MPI_Initialized(&initialized), "MPI_Initialized");
    if (initialized != 0) return;
    // Serialized, not multiple: a group is used from one thread at a time, and Open MPI takes locks on
    // its fast path only for multiple.
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED)
      throw SystemError("this MPI has no support for threads (MPI_THREAD_SERIALIZED)");
    finalize_ = true;
  }
  ~Runtime() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalize_ && finalized == 0) MPI_Finalize();
  }
  bool finalize_ = false;
};

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

class MpiEngine final : public Engine {
 public:
  // Takes the communicator over.
  explicit MpiEngine(MPI_Comm comm) : comm_(comm) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    find_nodes();
  }
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;
  ~MpiEngine() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0 && !failure_) MPI_Comm_free(&comm_);
  }

  const char* name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::vector<int>& nodes() const override { return nodes_; }

  std::string refuses(const Call& call) const override {
    if (call.device.kind != Device::Kind::cpu) return "the mpi engine works on host memory only";
    if (!call.algorithm.empty() && call.algorithm != "native")
      return "mpi has no algorithm '" + call.algorithm + "'; accepted: native";
    if (call.what == Collective::split) return "";
    if (call.divisor == kDivisorOfOthers) return "mpi needs the divisor from every rank";
    if (reduces(call.what)) {
      if (call.dtype == DType::f16 || call.dtype == DType::bf16)
        return std::string("MPI has no reduction of ") + to_string(call.dtype);
      if (!supports(call.op, call.dtype))
        return std::string(to_string(call.op)) + " needs integers, not " + to_string(call.dtype);
    }
    if (!can_be_cut(call.what) && call.count > INT_MAX)
      return std::string("mpi ") + to_string(call.what) + " takes at most 2147483647 elements a rank";
    return "";
  }

  std::vector<std::string> algorithms(Collective) const override { return {"native"}; }

  void run(const Call& call) override {
    if (const std::string why = refuses(call); !why.empty()) throw UsageError(why);
    failure_.guard([&] {
      try {
        if (size_ == 1)
          run_alone(call);
        else
          dispatch(call);
      } catch (const SystemError&) {
        Runtime::get().failed();
        throw;
      }
      finish_average(call, rank_, size_);
    });
  }

  CommMemory allocate(std::size_t bytes) override { return private_memory(bytes); }

  std::unique_ptr<Engine> split(int colour, int key, const std::string&, const Call&) override {
    MPI_Comm comm = MPI_COMM_NULL;
    failure_.guard([&] {
      check(MPI_Comm_split(comm_, colour < 0 ? MPI_UNDEFINED : colour, key, &comm), "MPI_Comm_split");
    });
    return comm == MPI_COMM_NULL ? nullptr : std::make_unique<MpiEngine>(comm);
  }

 private:
  void find_nodes() {
    MPI_Comm node = MPI_COMM_NULL;
    check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
    int leader = rank_;
    check(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "MPI_Bcast");
    check(MPI_Comm_free(&node), "MPI_Comm_free");
    nodes_.resize(static_cast<std::size_t>(size_));
    check(MPI_Allgather(&leader, 1, MPI_INT, nodes_.data(), 1, MPI_INT, comm_), "MPI_Allgather");
    std::map<int, int> index;  // leader's rank to node, counted from 0 in the order of appearance
    for (int& n : nodes_) n = index.try_emplace(n, static_cast<int>(index.size())).first->second;
  }

  void dispatch(const Call& call) {
    if (call.what == Collective::barrier) return check(MPI_Barrier(comm_), "MPI_Barrier");
    if (!can_be_cut(call.what)) return whole(call);
    // Pieces are the same on every rank because the count is. Zero elements still make one call.
    constexpr std::size_t kPiece = std::size_t{1} << 30;
    std::size_t done = 0;
    do {
      const std::size_t count = std::min(kPiece, call.count - done);
      piece(call, done * size_of(call.dtype), static_cast<int>(count));
      done += count;
    } while (done < call.count);
  }

  void piece(const Call& call, std::size_t offset, int count) {
    const MPI_Datatype type = mpi_type(call.dtype);
    const auto* in = call.in == nullptr ? nullptr : static_cast<const std::byte*>(call.in) + offset;
    auto* out = call.out == nullptr ? nullptr : static_cast<std::byte*>(call.out) + offset;
    const bool in_place = in == out && in != nullptr;
    switch (call.what) {
      case Collective::all_reduce:
        return check(MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, count, type, mpi_op(call.op), comm_),
                     "MPI_Allreduce");
      case Collective::reduce: {
        const void* source = in_place && rank_ == call.root ? MPI_IN_PLACE : static_cast<const void*>(in);
        // Elsewhere than on root the output is not significant; MPI checks that the two differ.
        return check(MPI_Reduce(source, rank_ == call.root ? out : nullptr, count, type, mpi_op(call.op),
                                call.root, comm_),
                     "MPI_Reduce");
      }
      case Collective::broadcast: return check(MPI_Bcast(out, count, type, call.root, comm_), "MPI_Bcast");
      case Collective::send: return check(MPI_Send(in, count, type, call.root, 0, comm_), "MPI_Send");
      case Collective::recv: {
        MPI_Status status;
        check(MPI_Recv(out, count, type, call.root, 0, comm_, &status), "MPI_Recv");
        int got = 0;
        check(MPI_Get_count(&status, type, &got), "MPI_Get_count");
        if (got != count)
          throw MismatchError(call.describe() + " from rank " + std::to_string(call.root) + " got " +
                              std::to_string(got) + " elements");
        return;
      }
      default: throw UsageError(std::string("mpi can't cut ") + to_string(call.what));
    }
  }

  void whole(const Call& call) {
    const MPI_Datatype type = mpi_type(call.dtype);
    const int count = static_cast<int>(call.count);
    const auto* in = static_cast<const std::byte*>(call.in);
    auto* out = static_cast<std::byte*>(call.out);
    const bool root = rank_ == call.root;
    const std::size_t own = static_cast<std::size_t>(rank_) * call.bytes();  // this rank's slice
    switch (call.what) {
      case Collective::reduce_scatter: return reduce_scatter(call);
      case Collective::all_gather: {
        const void* source = in == out + own ? MPI_IN_PLACE : static_cast<const void*>(in);
        return check(MPI_Allgather(source, count, type, out, count, type, comm_), "MPI_Allgather");
      }
      case Collective::gather: {
        const void* source = root && in == out + own ? MPI_IN_PLACE : static_cast<const void*>(in);
        return check(MPI_Gather(source, count, type, root ? out : nullptr, count, type, call.root, comm_),
                     "MPI_Gather");
      }
      case Collective::scatter: {
        void* sink = root && in + own == out ? MPI_IN_PLACE : static_cast<void*>(out);
        return check(MPI_Scatter(root ? in : nullptr, count, type, sink, count, type, call.root, comm_),
                     "MPI_Scatter");
      }
      case Collective::all_to_all: {
        const void* source = in == out ? MPI_IN_PLACE : static_cast<const void*>(in);
        return check(MPI_Alltoall(source, count, type, out, count, type, comm_), "MPI_Alltoall");
      }
      default: throw UsageError(std::string("mpi has no ") + to_string(call.what));
    }
  }

  // MPI's "in place" leaves the result at the start of the input; ours is the rank's slice of it, which
  // MPI takes for a forbidden overlap. Then the result goes through memory of its own.
  void reduce_scatter(const Call& call) {
    const auto* in = static_cast<const std::byte*>(call.in);
    auto* out = static_cast<std::byte*>(call.out);
    const bool inside =
        call.count != 0 && out >= in && out < in + static_cast<std::size_t>(size_) * call.bytes();
    if (inside && scratch_.bytes() < call.bytes()) scratch_ = private_memory(call.bytes());
    void* result = inside ? scratch_.data() : out;
    check(MPI_Reduce_scatter_block(in, result, static_cast<int>(call.count), mpi_type(call.dtype),
                                   mpi_op(call.op), comm_),
          "MPI_Reduce_scatter_block");
    if (inside) std::memcpy(out, result, call.bytes());
  }

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> nodes_;
  CommMemory scratch_;
  StickyFailure failure_;
};

}  // namespace

std::unique_ptr<Engine> make_mpi_engine() {
  Runtime::get();
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return std::make_unique<MpiEngine>(comm);
}

}  // namespace lockstep
