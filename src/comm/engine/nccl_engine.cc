#include "comm/engine/nccl_engine.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "comm/cuda/check.h"
#include "comm/cuda/reduce.h"
#include "comm/cuda/runtime.h"
#include "comm/engine/device_offers.h"
#include "comm/engine/ipc_round.h"
#include "comm/engine/nccl_link.h"
#include "comm/engine/nccl_moves.h"
#include "lockstep/base/knobs.h"

namespace lockstep {
namespace {

using cuda::CudaRuntime;

constexpr const char* kNative = "native";
constexpr const char* kOurs = "canonical";

// What a rank says when it enters a call.
struct NcclPost {
  double divisor = 0;
  ncclUniqueId id = {};  // of rank 0, until there is a communicator
};

class NcclEngine final : public Engine {
 public:
  explicit NcclEngine(std::shared_ptr<Engine> carrier)
      : Engine({.name = "nccl",
                .rank = carrier->rank(),
                .nodes = carrier->nodes(),
                .naming = carrier->naming(),
                .can = nccl_capabilities(carrier->capabilities()),
                .selector = carrier->selector()}),
        kept_(std::move(carrier)),
        carrier_(*kept_),
        knobs_(Knobs::from_environment()) {}

  CommMemory allocate(std::size_t bytes, Device device) override {
    if (device.kind == Device::Kind::cpu) return carrier_.allocate(bytes, device);
    return {CudaRuntime::get().allocate(bytes, device.index), bytes, device};
  }
  bool reaches(const void* data) const override { return carrier_.reaches(data); }
  double expected_seconds(const Call& call) const override {
    return call.device.kind == Device::Kind::cpu ? carrier_.expected_seconds(call) : 0;
  }
  PeerView peer(int rank) const override { return carrier_.peer(rank); }
  void tell_failure(const Error& error) noexcept override {
    carrier_.fail(error);
    if (link_) link_->abort(error);
  }
  void check(News news) override {
    if (link_) try {
        link_->check();
      } catch (const Error& error) {  // which its watcher found
        carrier_.fail(error);
        throw;
      }
    carrier_.check(news);
  }
  Composable* composable() override { return carrier_.composable(); }

 protected:
  void execute(const Call& given) override {
    if (given.device.kind == Device::Kind::cpu) return carrier_.run(given);
    Call call = given;
    if (call.timeout.count() <= 0) call.timeout = knobs_.timeout;
    try {
      on_device(call);
    } catch (const cuda::DeviceError& error) {
      const RankNames names = rank_names();
      throw SystemError(names.named(rank()) + ", " + call.where(names.group()) + ": " + error.what());
    }
  }
  double meet(const Call& call) override { return carrier_.open(call); }
  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) override {
    auto part = carrier_.split(colour, key, name, call);
    if (part == nullptr) return nullptr;
    return std::make_unique<NcclEngine>(std::move(part));
  }

 private:
  void on_device(Call& call) {
    if (size() == 1) {
      call.running(kNative);
      return put_alone(call);
    }
    if (link_ && call.device.index != index_)
      throw UsageError("group " + rank_names().group() + " works on cuda:" + std::to_string(index_) +
                       " over nccl, this call is on " + to_string(call.device) +
                       "; accepted: one GPU a rank and group");
    if (is_message(call.what)) {
      open_message(call);
    } else {
      call.divisor = open(call);
      if (call.count == 0) return call.running(kNative);
    }
    CudaRuntime::get().watch(call.stream, look_);
    const bool ours = is_ours(call);
    call.running(ours ? kOurs : kNative);
    if (is_message(call.what) && call.count > 0)
      moves_->message(call);
    else if (call.count > 0)
      ours ? moves_->canonical(call) : moves_->native(call);
    link_->watch(CudaRuntime::get().record(call.stream), call.where(rank_names().group()), call.timeout);
  }

  static bool is_ours(const Call& call) {
    if (!reduces(call.what)) return false;
    if (!call.algorithm.empty()) return call.algorithm == kOurs;
    return call.order == Order::canonical || !NcclMoves::native_has(call);
  }

  static Call part_of(const Call& call, Collective what, const void* in, void* out, std::size_t bytes) {
    Call part = call;
    part.what = what;
    part.device = {};
    part.stream = {};
    part.algorithm.clear();
    part.in = in;
    part.out = out;
    part.count = bytes;
    part.dtype = DType::u8;
    part.whole = &call;
    part.flight = nullptr;
    part.timing = nullptr;
    return part;
  }

  // All ranks meet and compare their calls; the first time they connect. Gives the divisor.
  double open(const Call& call) {
    NcclPost mine;
    mine.divisor = call.divisor;
    if (!link_ && rank() == 0) mine.id = NcclLink::make_id();
    std::vector<NcclPost> posts(static_cast<std::size_t>(size()));
    Call part = part_of(call, Collective::all_gather, &mine, posts.data(), sizeof mine);
    part.root = -1;
    carrier_.run(part);
    if (!link_) connect(call, posts[0].id);
    for (const NcclPost& post : posts)
      if (post.divisor != kDivisorOfOthers) return post.divisor;
    return kDivisorOfOthers;
  }

  void connect(const Call& call, const ncclUniqueId& id) {
    index_ = call.device.index;
    // The carrier of one machine is asked from any thread; others tell their news to whoever calls.
    const bool shared = std::string_view(carrier_.name()) == "shm";
    const RankNames names = rank_names();
    link_ = std::make_shared<NcclLink>(
        NcclLink::Facts{.rank = rank(),
                        .size = size(),
                        .index = index_,
                        .who = names.named(rank()) + " of group " + names.group(),
                        .news = shared ? std::function<void()>([kept = kept_] { kept->check(News::known); })
                                       : std::function<void()>([] {})},
        id, std::min(call.timeout, knobs_.init_timeout));
    moves_.emplace(*link_, rank(), size());
    look_ = std::make_shared<const std::function<void(bool)>>([link = link_](bool) { link->check(); });
  }

  // The sender says what it sends, so that the receiver can hold it against what it expects.
  void open_message(const Call& call) {
    if (!link_)
      throw UsageError(call.describe() + " is the first call of group " + rank_names().group() +
                       " on GPUs over nccl; accepted first: a collective, with which all ranks connect");
    std::byte nothing{};
    const bool sends = call.what == Collective::send;
    carrier_.run(part_of(call, call.what, sends ? &nothing : nullptr, sends ? nullptr : &nothing, 1));
  }

  const std::shared_ptr<Engine> kept_;
  Engine& carrier_;
  Knobs knobs_;
  int index_ = 0;
  std::shared_ptr<NcclLink> link_;  // null until the first call on a GPU
  std::optional<NcclMoves> moves_;
  std::shared_ptr<const std::function<void(bool)>> look_;
};

}  // namespace

Capabilities nccl_capabilities(Capabilities host) {
  const SetOf<ReduceOp> bits = {ReduceOp::bit_and, ReduceOp::bit_or};
  return with_devices(
      std::move(host), Device::Kind::cuda,
      {{.name = kNative,
        .collectives = kOnDevices,
        .canonical = false,
        .lacks = {{.ops = bits, .dtypes = kEveryDType, .why = "nccl has no"}}},
       {.name = kOurs,
        .collectives = {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}}});
}

std::unique_ptr<Engine> make_nccl_engine(std::shared_ptr<Engine> carrier) {
  if (carrier->size() > static_cast<int>(cuda::kMostInputs))
    throw UsageError("the nccl engine of " + std::to_string(carrier->size()) + " ranks; accepted: at most " +
                     std::to_string(cuda::kMostInputs));
  return std::make_unique<NcclEngine>(std::move(carrier));
}

}  // namespace lockstep
