#include "comm/grid.h"

#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "comm/algo/algorithm.h"
#include "comm/kernel_reference.h"
#include "comm/world/group_impl.h"

namespace lockstep::testing {
namespace {

constexpr std::byte kPoison{0xcd};

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// Element i of rank r's input. Floats keep products of eight of them in range.
void make_input(std::byte* to, int rank, std::size_t begin, std::size_t count, DType dtype) {
  with_element(dtype, [&](auto element) {
    using S = decltype(element);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bits = mix((static_cast<std::uint64_t>(rank) << 40) + begin + i);
      S value;
      if constexpr (std::is_integral_v<S>) {
        value = static_cast<S>(bits);
      } else {
        const double x = (static_cast<double>(bits >> 11) * 0x1p-53 + 0.5) * ((bits & 1) != 0 ? 1 : -1);
        if constexpr (std::is_same_v<S, Half>)
          value = to_half(static_cast<float>(x));
        else if constexpr (std::is_same_v<S, BFloat16>)
          value = to_bfloat16(static_cast<float>(x));
        else
          value = static_cast<S>(x);
      }
      std::memcpy(to + i * sizeof(S), &value, sizeof(S));
    }
  });
}

// Ring and vendors reduce in another order: the same up to rounding, which is less than any one rank gives.
//
// Inputs lie between 0.5 and 1.5, so partial sums of n ranks up to 1.5, 3, … 1.5 n are rounded on the way, by
// `unit` of themselves: in all by less than 1.5 n (n + 1) unit. A mean is off by the n-th part of that, and a
// product by n unit of itself. `unit` is twice what a rounding is off by: the reference is rounded, too.
bool close(const std::byte* got, const std::byte* want, std::size_t count, DType dtype, ReduceOp op,
           int ranks) {
  bool all = true;
  with_element(dtype, [&](auto element) {
    using S = decltype(element);
    const double unit = std::is_same_v<S, double>  ? 0x1p-52
                        : std::is_same_v<S, float> ? 0x1p-23
                        : std::is_same_v<S, Half>  ? 0x1p-10
                                                   : 0x1p-7;
    const double of_sum = 1.5 * ranks * (ranks + 1) * unit;
    for (std::size_t i = 0; i < count; ++i) {
      S x;
      S y;
      std::memcpy(&x, got + i * sizeof(S), sizeof(S));
      std::memcpy(&y, want + i * sizeof(S), sizeof(S));
      const auto value = static_cast<double>(reference_widen(x));
      const auto right = static_cast<double>(reference_widen(y));
      const double most = op == ReduceOp::product ? std::abs(right) * ranks * unit
                          : op == ReduceOp::avg   ? of_sum / ranks
                                                  : of_sum;
      all &= std::abs(value - right) <= most;  // no NaN is
    }
  });
  return all;
}

class Grid {
 public:
  Grid(const Group& group, const GridOptions& options) : group_(group), options_(options) {}

  GridResult run() {
    for (std::size_t count : options_.counts)
      for (DType dtype : options_.dtypes) {
        count_ = count;
        dtype_ = dtype;
        references_.clear();
        own_input_.resize(count * static_cast<std::size_t>(n()) * size_of(dtype) + 1);
        make_input(own_input_.data(), me(), 0, count * static_cast<std::size_t>(n()), dtype);
        for (int what = 0; what <= static_cast<int>(Collective::all_to_all); ++what)
          collective(static_cast<Collective>(what));
        messages();
      }
    what_ = Collective::barrier;
    for (const std::string& name : group_.algorithms(what_)) group_.barrier({.algorithm = name});
    return result_;
  }

 private:
  std::size_t bytes() const { return count_ * size_of(dtype_); }
  int n() const { return group_.size(); }
  int me() const { return group_.rank(); }

  void collective(Collective what) {
    what_ = what;
    std::vector<std::string> names = group_.algorithms(what);
    names.emplace_back();  // the chosen one
    std::vector<ReduceOp> ops = {ReduceOp::sum};
    if (reduces(what)) ops.assign(std::begin(kAllReduceOps), std::end(kAllReduceOps));
    int turn = 0;
    for (const std::string& name : names)
      for (ReduceOp op : ops) {
        if (!supports(op, dtype_)) continue;
        for (int memory = 0; memory < 3; ++memory)
          for (int in_place = 0; in_place < 2; ++in_place) {
            if (!options_.every_memory && (memory != turn % 3 || in_place != (turn / 3) % 2)) continue;
            algorithm_ = name;
            op_ = op;
            memory_ = memory;
            in_place_ = in_place == 1;
            one();
          }
        ++turn;
      }
  }

  // memory 0: comm, 1: private, 2: comm on even ranks only.
  std::byte* room(CommMemory& comm, std::vector<std::byte>& own, std::size_t size) {
    const bool in_comm = memory_ == 0 || (memory_ == 2 && me() % 2 == 0);
    if (in_comm) {
      if (comm.bytes() < size || comm.data() == nullptr)
        comm = group_.allocate(std::max<std::size_t>(size, 64));
      return comm.as<std::byte>();
    }
    own.resize(std::max<std::size_t>(own.size(), size + 64));
    return own.data() + 4 * (count_ % 2);  // not always aligned
  }

  // Whether the algorithm that is asked for carries such a call: a vendor's own may lack a type, eager takes
  // small ones, and the kernel may not allow pages.
  bool takes() const {
    Call call;
    call.what = what_;
    call.count = count_;
    call.dtype = dtype_;
    call.op = op_;
    call.algorithm = algorithm_;
    return engine_of(group_).refuses(call).empty();
  }

  void one() {
    const auto ranks = static_cast<std::size_t>(n());
    const bool spread_in = what_ == Collective::reduce_scatter || what_ == Collective::scatter ||
                           what_ == Collective::all_to_all;
    const bool spread_out =
        what_ == Collective::all_gather || what_ == Collective::gather || what_ == Collective::all_to_all;
    const std::size_t in_count = spread_in ? count_ * ranks : count_;
    const std::size_t out_count = spread_out ? count_ * ranks : count_;
    const std::size_t in_bytes = in_count * size_of(dtype_);
    const std::size_t out_bytes = out_count * size_of(dtype_);
    if (!algorithm_.empty() && !takes()) return;
    const int root = static_cast<int>((count_ + static_cast<std::size_t>(op_)) % ranks);
    const bool broadcast = what_ == Collective::broadcast;

    std::byte* const in = room(comm_in_, own_in_, std::max(in_bytes, out_bytes));
    std::byte* out = in;
    const std::size_t own = static_cast<std::size_t>(me()) * bytes();
    const std::byte* give = in;
    if (!in_place_ && !broadcast) {
      out = room(comm_out_, own_out_, out_bytes);
      std::memset(out, static_cast<int>(kPoison), out_bytes);
    } else if (spread_out && !spread_in) {
      std::memset(in, static_cast<int>(kPoison), out_bytes);
      give = in + own;
    } else if (spread_in && !spread_out) {
      out = in + own;
    }
    std::memcpy(const_cast<std::byte*>(give), own_input_.data(), in_bytes);
    const CallOptions options{.op = op_, .algorithm = algorithm_};
    const ConstBuffer from(give, in_count, dtype_);
    const Buffer to{out, out_count, dtype_};
    const bool at_root = me() == root;
    const ConstBuffer nothing_in(nullptr, 0, dtype_);
    const Buffer nothing{nullptr, 0, dtype_};
    switch (what_) {
      case Collective::all_reduce: group_.all_reduce(from, to, options); break;
      case Collective::reduce_scatter: group_.reduce_scatter(from, to, options); break;
      case Collective::all_gather: group_.all_gather(from, to, options); break;
      case Collective::broadcast: group_.broadcast(to, root, options); break;
      case Collective::reduce: group_.reduce(from, at_root ? to : nothing, root, options); break;
      case Collective::gather: group_.gather(from, at_root ? to : nothing, root, options); break;
      case Collective::scatter: group_.scatter(at_root ? from : nothing_in, to, root, options); break;
      case Collective::all_to_all: group_.all_to_all(from, to, options); break;
      default: return;
    }
    check(out, root);
  }

  // Whether the algorithm promises the canonical order here.
  bool in_order() const {
    const Algorithm* const algorithm = find_algorithm(algorithm_);
    return algorithm_.empty() || (algorithm != nullptr && algorithm->canonical(group_.nodes()));
  }

  // Compares elements [0, count) of `got` with the reduction of everybody's elements from `begin` on; of
  // long results each rank compares its own part, the rest by a hash that must be the same everywhere.
  void check_reduction(const std::byte* got, std::size_t begin, bool everywhere) {
    std::size_t first = 0;
    std::size_t last = count_;
    if (everywhere && count_ > 65536) {
      first = count_ * static_cast<std::size_t>(me()) / static_cast<std::size_t>(n());
      last = count_ * static_cast<std::size_t>(me() + 1) / static_cast<std::size_t>(n());
      compare_hashes(got);
    }
    const std::size_t size = size_of(dtype_);
    const std::vector<std::byte>& want = reference(begin + first, last - first);
    const std::byte* const part = got + first * size;
    const bool any_order = !in_order() && is_float(dtype_) && op_ != ReduceOp::min && op_ != ReduceOp::max;
    const bool same = any_order ? close(part, want.data(), last - first, dtype_, op_, n())
                                : std::memcmp(part, want.data(), (last - first) * size) == 0;
    verdict(same, first_difference(part, want.data(), last - first, dtype_));
  }

  // The reduction of everybody's elements [begin, begin + count); computed once for all algorithms.
  const std::vector<std::byte>& reference(std::size_t begin, std::size_t count) {
    auto [at, fresh] = references_.try_emplace({op_, begin, count});
    if (!fresh) return at->second;
    const std::size_t size = size_of(dtype_);
    std::vector<std::vector<std::byte>> inputs;
    std::vector<const void*> ins;
    for (int r = 0; r < n(); ++r) {
      inputs.emplace_back(count * size + 1);
      make_input(inputs.back().data(), r, begin, count, dtype_);
      ins.push_back(inputs.back().data());
    }
    at->second.resize(count * size + 1);
    reference_reduce(at->second.data(), ins, count, dtype_, op_, n());
    return at->second;
  }

  void compare_hashes(const std::byte* got) {
    std::uint64_t hash = 1469598103934665603U;
    for (std::size_t i = 0; i < bytes(); i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, got + i, std::min<std::size_t>(8, bytes() - i));
      hash = (hash ^ word) * 1099511628211U;
    }
    std::vector<std::int64_t> all(static_cast<std::size_t>(n()));
    const std::int64_t own = static_cast<std::int64_t>(hash);
    group_.all_gather(ConstBuffer(&own, 1, DType::i64), buffer(all));
    for (std::int64_t other : all) verdict(other == own, -1);
  }

  void check_copy(const std::byte* got, int rank, std::size_t begin, std::size_t count) {
    std::vector<std::byte> want(count * size_of(dtype_) + 1);
    make_input(want.data(), rank, begin, count, dtype_);
    verdict(std::memcmp(got, want.data(), count * size_of(dtype_)) == 0,
            first_difference(got, want.data(), count, dtype_));
  }

  void check(const std::byte* out, int root) {
    const auto own = static_cast<std::size_t>(me()) * count_;
    switch (what_) {
      case Collective::all_reduce: return check_reduction(out, 0, true);
      case Collective::reduce_scatter: return check_reduction(out, own, false);
      case Collective::reduce:
        if (me() == root) check_reduction(out, 0, false);
        return;
      case Collective::broadcast: return check_copy(out, root, 0, count_);
      case Collective::scatter: return check_copy(out, root, own, count_);
      case Collective::gather:
        if (me() != root) return;
        [[fallthrough]];
      case Collective::all_gather:
      case Collective::all_to_all:
        for (int r = 0; r < n(); ++r)
          check_copy(out + static_cast<std::size_t>(r) * bytes(), r,
                     what_ == Collective::all_to_all ? own : 0, count_);
        return;
      default: return;
    }
  }

  // To the next rank, from the one before. Even ranks send first; with an odd number the last rank, even
  // itself, sends to rank 0, which has yet to receive: one waits for the other only until rank 1 took.
  void messages() {
    what_ = Collective::send;
    if (n() == 1) return;
    const int next = (me() + 1) % n();
    const int previous = (me() - 1 + n()) % n();
    std::vector<std::byte> out(bytes() + 1);
    std::vector<std::byte> in(bytes() + 1);
    make_input(out.data(), me(), 0, count_, dtype_);
    const auto send = [&] { group_.send(ConstBuffer(out.data(), count_, dtype_), next); };
    if (me() % 2 == 0) send();
    group_.recv(Buffer{in.data(), count_, dtype_}, previous);
    if (me() % 2 == 1) send();
    check_copy(in.data(), previous, 0, count_);
  }

  void verdict(bool same, std::ptrdiff_t where) {
    ++result_.checks;
    if (same || !result_.problem.empty()) return;
    result_.problem = std::string(to_string(what_)) + " by " + (algorithm_.empty() ? "choice" : algorithm_) +
                      ", " + to_string(dtype_) + " × " + std::to_string(count_) + ", " + to_string(op_) +
                      ", memory " + std::to_string(memory_) + (in_place_ ? ", in place" : "") + ", " +
                      std::to_string(n()) + " ranks, on rank " + std::to_string(me()) +
                      ": wrong at element " + std::to_string(where);
  }

  const Group& group_;
  const GridOptions& options_;
  GridResult result_;
  std::size_t count_ = 0;
  DType dtype_ = DType::f32;
  Collective what_ = Collective::barrier;
  std::string algorithm_;
  ReduceOp op_ = ReduceOp::sum;
  int memory_ = 0;
  bool in_place_ = false;
  CommMemory comm_in_;
  CommMemory comm_out_;
  std::vector<std::byte> own_input_;  // as make_input gives it
  std::map<std::tuple<ReduceOp, std::size_t, std::size_t>, std::vector<std::byte>> references_;
  std::vector<std::byte> own_in_;
  std::vector<std::byte> own_out_;
};

}  // namespace

GridResult run_grid(const Group& group, const GridOptions& options) { return Grid(group, options).run(); }

}  // namespace lockstep::testing
