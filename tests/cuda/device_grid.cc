#include "cuda/device_grid.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/call/call.h"
#include "comm/kernel_reference.h"
#include "cuda/gpu.h"

namespace lockstep::testing {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

Bytes input_of(int rank, std::size_t count, DType dtype) {
  Bytes bytes(count * size_of(dtype));
  with_element(dtype, [&](auto element) {
    using S = decltype(element);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bits = mix((static_cast<std::uint64_t>(rank) << 40) + i);
      const double x = (static_cast<double>(bits >> 11) * 0x1p-53 + 0.5) * ((bits & 1) != 0 ? 1 : -1);
      S value;
      if constexpr (std::is_integral_v<S>)
        value = static_cast<S>(bits);
      else if constexpr (std::is_same_v<S, Half>)
        value = to_half(static_cast<float>(x));
      else if constexpr (std::is_same_v<S, BFloat16>)
        value = to_bfloat16(static_cast<float>(x));
      else
        value = static_cast<S>(x);
      std::memcpy(bytes.data() + i * sizeof(S), &value, sizeof(S));
    }
  });
  return bytes;
}

class DeviceGrid {
 public:
  explicit DeviceGrid(const Group& group) : group_(group), n_(static_cast<std::size_t>(group.size())) {}

  DeviceGridResult run(const DeviceGridOptions& options) {
    for (const std::size_t count : options.counts)
      for (const DType dtype : options.dtypes) {
        begin(count, dtype);
        for (int what = 0; what <= static_cast<int>(Collective::all_to_all); ++what)
          for (const ReduceOp op : options.ops) {
            what_ = static_cast<Collective>(what);
            op_ = op;
            const bool asked = options.collectives.empty() ||
                               std::ranges::find(options.collectives, what_) != options.collectives.end();
            if (!asked || !supports(op, dtype) || (!reduces(what_) && op != ReduceOp::sum)) continue;
            for (int kind = 0; kind < 4; ++kind) one(kind % 2 == 1, kind / 2 == 1);
          }
        if (options.collectives.empty()) messages();
        fetch();
      }
    return result_;
  }

 private:
  // Everybody's inputs, and this rank's on the GPU.
  void begin(std::size_t count, DType dtype) {
    count_ = count;
    dtype_ = dtype;
    inputs_.clear();
    expected_ = nullptr;
    for (std::size_t r = 0; r < n_; ++r) inputs_.push_back(input_of(static_cast<int>(r), count * n_, dtype));
    const Bytes& mine = inputs_[static_cast<std::size_t>(me())];
    input_ = runtime_of(kGpu).allocate(mine.size() + 64, 0);
    upload(input_.get(), mine.data(), mine.size());
  }
  void copy(void* to, const void* from, std::size_t size) const {
    DeviceRuntime& runtime = runtime_of(kGpu);
    runtime.copy(to, from, size, runtime.current_stream(0));
  }

  std::size_t bytes() const { return count_ * size_of(dtype_); }
  int me() const { return group_.rank(); }
  bool many_in() const {
    return what_ == Collective::reduce_scatter || what_ == Collective::scatter ||
           what_ == Collective::all_to_all;
  }
  bool many_out() const {
    return what_ == Collective::all_gather || what_ == Collective::gather || what_ == Collective::all_to_all;
  }

  enum class Use { in, out };

  // Of the group, or what it does not know: there odd places come, too. Kept for later calls that find room
  // in it: making memory that processes map takes longer than a call.
  std::shared_ptr<void> room(bool own, Use use, std::size_t size) {
    Room& kept = rooms_[own ? 1 : 0][use == Use::in ? 0 : 1];
    if (kept.memory == nullptr || kept.bytes < size) kept = {made(own, size), size};
    return kept.memory;
  }
  std::shared_ptr<void> made(bool own, std::size_t size) const {
    if (own) return runtime_of(kGpu).allocate(size + 64, 0);
    auto memory = std::make_shared<CommMemory>(group_.allocate(size + 64, kGpu));
    return {memory, memory->data()};
  }

  void one(bool own_memory, bool in_place) {
    const std::size_t in_count = many_in() ? count_ * n_ : count_;
    const std::size_t out_count = many_out() ? count_ * n_ : count_;
    const int root = static_cast<int>((count_ + static_cast<std::size_t>(op_)) % n_);
    const std::size_t size = size_of(dtype_);
    const std::size_t shift = own_memory && me() % 2 == 1 ? size : 0;
    const auto in_room = room(own_memory, Use::in, std::max(in_count, out_count) * size);
    const auto out_room = room(own_memory, Use::out, out_count * size);
    std::byte* const in = static_cast<std::byte*>(in_room.get()) + shift;
    std::byte* give = in;
    std::byte* out = static_cast<std::byte*>(out_room.get()) + shift;
    const std::size_t mine = static_cast<std::size_t>(me()) * bytes();
    if (in_place || what_ == Collective::broadcast) {
      give = many_out() && !many_in() ? in + mine : in;
      out = many_in() && !many_out() ? in + mine : in;
    }
    copy(give, input_.get(), in_count * size);
    const CallOptions options{.op = op_};
    const ConstBuffer from(give, in_count, dtype_, kGpu);
    const Buffer to{out, out_count, dtype_, kGpu};
    const bool at_root = me() == root;
    const ConstBuffer nothing_in(nullptr, 0, dtype_, kGpu);
    const Buffer nothing{nullptr, 0, dtype_, kGpu};
    switch (what_) {
      case Collective::all_reduce: group_.all_reduce_async(from, to, options).wait(); break;
      case Collective::reduce_scatter: group_.reduce_scatter(from, to, options); break;
      case Collective::all_gather: group_.all_gather_async(from, to, options).wait(); break;
      case Collective::broadcast: group_.broadcast(to, root, options); break;
      case Collective::reduce: group_.reduce(from, at_root ? to : nothing, root, options); break;
      case Collective::gather: group_.gather(from, at_root ? to : nothing, root, options); break;
      case Collective::scatter: group_.scatter(at_root ? from : nothing_in, to, root, options); break;
      case Collective::all_to_all: group_.all_to_all(from, to, options); break;
      default: return;
    }
    const bool gets = at_root || (what_ != Collective::reduce && what_ != Collective::gather);
    if (gets)
      collect(
          out, out_count * size, [&] { return wanted(root); }, own_memory, in_place);
  }

  Bytes wanted(int root) const {
    const std::size_t mine = static_cast<std::size_t>(me()) * bytes();
    std::vector<const void*> ins;
    const bool slices = many_in();
    for (const Bytes& input : inputs_) ins.push_back(input.data() + (slices ? mine : 0));
    if (reduces(what_)) {
      Bytes result(bytes());
      reference_reduce(result.data(), ins, count_, dtype_, op_, static_cast<int>(n_));
      return result;
    }
    const auto part = [&](std::size_t r) {
      const auto* const first = static_cast<const std::byte*>(ins[r]);
      return Bytes(first, first + bytes());
    };
    if (what_ == Collective::broadcast || what_ == Collective::scatter)
      return part(static_cast<std::size_t>(root));
    Bytes result;
    for (std::size_t r = 0; r < n_; ++r) {
      const Bytes one = part(r);
      result.insert(result.end(), one.begin(), one.end());
    }
    return result;
  }

  void messages() {
    what_ = Collective::send;
    if (n_ == 1) return;
    const int next = (me() + 1) % static_cast<int>(n_);
    const int previous = (me() + static_cast<int>(n_) - 1) % static_cast<int>(n_);
    const auto out = room(false, Use::out, bytes());
    const auto in = room(true, Use::in, bytes());
    copy(out.get(), input_.get(), bytes());
    const auto send = [&] { group_.send(ConstBuffer(out.get(), count_, dtype_, kGpu), next); };
    if (me() % 2 == 0) send();
    group_.recv(Buffer{in.get(), count_, dtype_, kGpu}, previous);
    if (me() % 2 == 1) send();
    const Bytes& theirs = inputs_[static_cast<std::size_t>(previous)];
    collect(
        in.get(), bytes(),
        [&] { return Bytes(theirs.begin(), theirs.begin() + static_cast<std::ptrdiff_t>(bytes())); }, false,
        false);
  }

  // What lies at `from` is to be what `wanted` gives, which is the same for all kinds of memory.
  template <class Wanted>
  void collect(const void* from, std::size_t size, Wanted&& wanted, bool own_memory, bool in_place) {
    const auto key = std::pair(what_, op_);
    if (expected_ == nullptr || key != expected_for_) expected_ = std::make_shared<const Bytes>(wanted());
    expected_for_ = key;
    constexpr std::size_t kRoom = std::size_t{8} << 20;
    if (used_ + size > results_bytes_) fetch();
    if (size > results_bytes_) {
      results_bytes_ = std::max(size, kRoom);
      results_ = runtime_of(kGpu).allocate(results_bytes_, 0);
    }
    copy(static_cast<std::byte*>(results_.get()) + used_, from, size);
    collected_.push_back({used_, size, expected_, describe(own_memory, in_place), dtype_});
    used_ += size;
  }
  std::string describe(bool own_memory, bool in_place) const {
    return std::string(to_string(what_)) + ", " + to_string(dtype_) + " × " + std::to_string(count_) + ", " +
           to_string(op_) + (own_memory ? ", private memory" : ", comm memory") +
           (in_place ? ", in place" : "") + ", rank " + std::to_string(me()) + " of " + std::to_string(n_);
  }

  // Compares all that was collected.
  void fetch() {
    const Bytes got = download(results_.get(), used_);
    for (const Collected& one : collected_) {
      ++result_.checks;
      const std::byte* const first = got.data() + one.at;
      if (!result_.problem.empty()) continue;
      if (one.size != one.wanted->size())
        result_.problem =
            one.what + ": " + std::to_string(one.size) + " bytes, not " + std::to_string(one.wanted->size());
      else if (one.size > 0 && std::memcmp(first, one.wanted->data(), one.size) != 0)
        result_.problem = one.what + ": wrong at element " +
                          std::to_string(first_difference(first, one.wanted->data(),
                                                          one.size / size_of(one.dtype), one.dtype));
    }
    collected_.clear();
    used_ = 0;
  }

  struct Room {
    std::shared_ptr<void> memory;
    std::size_t bytes = 0;
  };

  struct Collected {
    std::size_t at;  // in results_
    std::size_t size;
    std::shared_ptr<const Bytes> wanted;
    std::string what;
    DType dtype;
  };

  const Group& group_;
  std::size_t n_;
  std::vector<Bytes> inputs_;    // by rank, as much as the largest takes
  std::shared_ptr<void> input_;  // this rank's
  std::shared_ptr<void> results_;
  std::size_t results_bytes_ = 0;
  std::size_t used_ = 0;
  std::vector<Collected> collected_;
  std::shared_ptr<const Bytes> expected_;
  std::pair<Collective, ReduceOp> expected_for_;
  Room rooms_[2][2];  // by whose memory it is, and by what it is for
  DeviceGridResult result_;
  std::size_t count_ = 0;
  DType dtype_ = DType::f32;
  Collective what_ = Collective::barrier;
  ReduceOp op_ = ReduceOp::sum;
};

}  // namespace

DeviceGridResult run_device_grid(const Group& group, const DeviceGridOptions& options) {
  return DeviceGrid(group).run(options);
}

}  // namespace lockstep::testing
