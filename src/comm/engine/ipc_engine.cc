#include "comm/engine/ipc_engine.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <thread>
#include <utility>

#include "comm/cuda/call_order.h"
#include "comm/cuda/check.h"
#include "comm/cuda/ipc_lender.h"
#include "comm/cuda/ipc_memory.h"
#include "comm/cuda/ipc_peers.h"
#include "comm/cuda/reduce.h"
#include "comm/cuda/runtime.h"
#include "comm/engine/device_offers.h"
#include "comm/engine/ipc_commons.h"
#include "comm/engine/ipc_message.h"
#include "comm/engine/ipc_round.h"
#include "comm/engine/ipc_signals.h"
#include "lockstep/base/knobs.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

using cuda::CallOrder;
using cuda::CallStreams;
using cuda::CudaRuntime;
using cuda::IpcMemory;
using cuda::IpcPlace;
using cuda::IpcPost;

constexpr const char* kName = "ipc";
// How long a group that goes waits for its last call on the GPU, and where a peer died on the way.
constexpr std::chrono::seconds kLastCall{60};
constexpr std::chrono::seconds kLastCallOfFailed{2};

double divisor_of(const std::vector<IpcPost>& posts) {
  for (const IpcPost& post : posts)
    if (post.divisor != kDivisorOfOthers) return post.divisor;
  return kDivisorOfOthers;
}

class IpcEngine final : public Engine {
 public:
  explicit IpcEngine(std::shared_ptr<Engine> carrier)
      : Engine({.name = kName,
                .rank = carrier->rank(),
                .nodes = carrier->nodes(),
                .naming = carrier->naming(),
                .can = ipc_capabilities(carrier->capabilities()),
                .selector = carrier->selector(),
                .device_commons = IpcCommons::make(carrier)}),
        kept_(std::move(carrier)),
        carrier_(*kept_),
        timeout_(Knobs::from_environment().timeout),
        signals_(IpcSignals::make(kept_)),
        look_(std::make_shared<const std::function<void(bool)>>(
            [kept = kept_, signals = signals_](bool passed) {
              // What passed since somebody was let go of has no meaning.
              if (!passed || signals->released()) check_carrier(*kept, News::known);
            })) {}
  ~IpcEngine() override { wait_for_last_call(); }

  CommMemory allocate(std::size_t bytes, Device device) override {
    if (device.kind == Device::Kind::cpu) return carrier_.allocate(bytes, device);
    IpcCommons::reap();
    return IpcMemory::get().allocate(bytes, device);
  }
  bool reaches(const void* data) const override {
    return carrier_.reaches(data) || IpcMemory::get().find(data) != nullptr;
  }
  double expected_seconds(const Call& call) const override {
    return call.device.kind == Device::Kind::cpu ? carrier_.expected_seconds(call) : 0;
  }
  PeerView peer(int rank) const override { return carrier_.peer(rank); }
  void tell_failure(const Error& error) noexcept override { carrier_.fail(error); }
  void check(News news) override { check_carrier(carrier_, news); }
  Composable* composable() override { return carrier_.composable(); }

 protected:
  void execute(const Call& given) override {
    if (given.device.kind == Device::Kind::cpu) return carrier_.run(given);
    Call call = given;
    if (call.timeout.count() <= 0) call.timeout = timeout_;
    try {
      on_device(call);
    } catch (const cuda::DeviceError& error) {
      gave_up(call);
      const RankNames names = rank_names();
      throw SystemError(names.named(rank()) + ", " + call.where(names.group()) + ": " + error.what());
    } catch (const Error&) {
      gave_up(call);
      throw;
    }
  }
  double meet(const Call& call) override { return carrier_.open(call); }
  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) override {
    auto part = carrier_.split(colour, key, name, call);
    if (part == nullptr) return nullptr;
    return std::make_unique<IpcEngine>(std::move(part));
  }

 private:
  static void check_carrier(Engine& carrier, News news) {
    try {
      carrier.check(news);
    } catch (const Error&) {
      IpcSignals::release_dead();
      throw;
    }
  }
  // A part of the call may be on its stream.
  void gave_up(const Call& call) noexcept {
    IpcSignals::release_dead();
    try {
      last_ = CudaRuntime::get().record(call.stream);
    } catch (const std::exception&) {  // the device failed
    }
  }

  void on_device(const Call& call) {
    IpcCommons::reap();
    CudaRuntime::get().watch(call.stream, look_);
    if (goes_by_memory(call, size())) {
      const std::array memory = memory_of(call, size());
      in_rounds(call, order_.begin(call.stream, call.start, memory));
      return order_.end(memory, last_);
    }
    if (call.what == Collective::barrier && size() > 1) {
      put_barrier(call);
    } else if (is_message(call.what)) {
      put_message({call, carrier_, lender_, peers_}, kName);
      ended(call);
    } else if (call.count == 0) {
      (void)carrier_.open(part_of(call));
      call.running(kName);
      ended(call);
    } else if (size() == 1) {
      call.running(kName);
      put_alone(call);
      ended(call);
    } else {
      in_rounds(call, {call.stream, call.stream});
    }
    order_.end_elsewhere(last_);
  }
  void ended(const Call& call) {
    last_ = CudaRuntime::get().record(call.stream);
    if (call.end != nullptr) *call.end = last_;
  }
  void in_rounds(const Call& call, const CallStreams& streams) {
    for (std::size_t begin = 0; begin < call.count;) {
      if (begin > 0) signals_->end(CudaRuntime::get().record(call.stream));
      begin = round(call, begin, streams);
    }
    ended(call);
    signals_->end(last_);
  }

  // Every rank's stream says that it has got here, and waits until all have.
  void put_barrier(const Call& call) {
    const IpcSignals::Round signal{call, lender_, peers_};
    signals_->begin(signal);
    IpcPost mine = lender_.new_post(call.device, call.divisor);
    signals_->ready(signal, call.stream);
    lender_.retire(mine);
    const std::vector<IpcPost> posts = exchange(carrier_, call, mine);
    call.running(kName);
    for (const IpcPost& post : posts) peers_.let_go(post);
    signals_->wait_ready(signal, posts, call.stream, call.stream);
    (void)carrier_.open(part_of(call));
    lender_.drop_retired(mine);
    ended(call);
    signals_->end(last_);
  }

  // The elements from `begin` on, as many as go at once; gives where they end.
  std::size_t round(const Call& call, std::size_t begin, const CallStreams& streams) {
    const std::size_t once = std::min(call.count, begin + at_once(call, size()));
    const IpcSignals::Round signal{call, lender_, peers_};
    signals_->begin(signal);
    IpcPost mine = post_of(call, begin, once);
    mine.ready_now = streams.ready ? 1 : 0;
    if (!streams.ready) signals_->ready(signal, streams.posts);
    lender_.retire(mine);
    const std::vector<IpcPost> posts = exchange(carrier_, call, mine);
    call.running(kName);
    const bool staged = std::ranges::any_of(posts, [](const IpcPost& post) { return post.staged != 0; });
    const std::size_t end = staged ? once : call.count;
    IpcRound part{.call = call,
                  .stream = streams.work,
                  .divisor = divisor_of(posts),
                  .rank = rank(),
                  .begin = begin,
                  .end = end,
                  .views = {}};
    const int index = call.device.index;
    for (const IpcPost& post : posts) {
      peers_.let_go(post);
      IpcView view;
      if (post.in.block != 0) view.in = peers_.reach(post, post.in, index);
      if (post.out.block != 0) view.out = peers_.reach(post, post.out, index);
      view.stride = post.in.stride;
      part.views.push_back(view);
    }
    signals_->wait_ready(signal, posts, streams.work, streams.posts);
    put_round(part);
    signals_->done(signal, streams.work);
    (void)carrier_.open(part_of(call));
    lender_.drop_retired(mine);
    signals_->wait_done(signal, posts, call.stream, streams.work);
    if (call.what == Collective::all_reduce && mine.staged != 0)
      CudaRuntime::get().copy(element(call.out, call, begin), lender_.staging(call.device),
                              (end - begin) * size_of(call.dtype), call.stream);
    return end;
  }

  // Where this rank's elements [begin, once) are for the others, behind what its stream holds.
  IpcPost post_of(const Call& call, std::size_t begin, std::size_t once) {
    IpcPost post = lender_.new_post(call.device, call.divisor);
    const std::size_t slices = gives_slices(call.what) ? static_cast<std::size_t>(size()) : 1;
    const bool all = call.what == Collective::all_reduce;
    if (gives_input(call, rank())) {
      // Who sends slices to all in place would have them overwritten before they are read.
      const bool in_the_way = call.what == Collective::all_to_all && call.in == call.out;
      post.in = in_the_way ? IpcPlace{} : lender_.place_of(element(call.in, call, begin), call.bytes());
    }
    if (all) post.out = lender_.place_of(element(call.out, call, begin), 0);
    const bool in_needed = gives_input(call, rank()) && post.in.block == 0;
    if (all && in_needed && post.out.block != 0) {
      // The result's own place will do.
      if (begin == 0) CudaRuntime::get().copy(call.out, call.in, call.bytes(), call.stream);
      post.in = post.out;
    } else if (in_needed || (all && post.out.block == 0)) {
      const IpcPlace staging = lender_.staging_of(call.device, slices * (once - begin) * size_of(call.dtype),
                                                  (once - begin) * size_of(call.dtype));
      post.staged = 1;
      if (all) post.out = staging;
      if (in_needed) {
        for (std::size_t s = 0; s < slices; ++s)
          CudaRuntime::get().copy(reinterpret_cast<std::byte*>(staging.address) + s * staging.stride,
                                  element(call.in, call, s * call.count + begin), staging.stride,
                                  call.stream);
        post.in = staging;
      }
    }
    return post;
  }

  // Peers work on this rank's memory, and wait for it, until the last call is over on the GPU, also where
  // nobody here waits for that. Where one of them died nobody waits for it any more; what does not end all
  // the same stays, with what it works on, as long as the process.
  void wait_for_last_call() noexcept try {
    if (!last_) return;
    std::vector<DeviceEvent> until{last_};
    bool failed = false;
    Deadline deadline = Deadline::after(kLastCall);
    const auto over = [&] {
      return std::ranges::all_of(until, [](const DeviceEvent& e) { return CudaRuntime::get().passed(e); });
    };
    while (!deadline.passed()) {
      try {
        check(News::known);
      } catch (const Error&) {
        if (!std::exchange(failed, true)) {
          deadline = Deadline::after(kLastCallOfFailed);
          std::ranges::move(order_.points(), std::back_inserter(until));
        }
      }
      if (over()) return;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    keep_for_ever();
    log().warn(
        "the last call of group {} has not ended on {}: what it works on stays until this process ends",
        rank_names().group(), to_string(last_.device));
  } catch (const std::exception& problem) {
    keep_for_ever();
    log().warn("the last call of group {} failed: {}", rank_names().group(), problem.what());
  }

  void keep_for_ever() noexcept {
    struct Kept {
      cuda::IpcPeers peers;
      cuda::IpcLender lender;
      CallOrder order;
      std::shared_ptr<IpcSignals> signals;
    };
    if (auto* const kept = new (std::nothrow) Kept) {
      kept->peers = std::move(peers_);
      kept->lender = std::move(lender_);
      kept->order = std::move(order_);
      kept->signals = signals_;
    }
  }

  const std::shared_ptr<Engine> kept_;
  Engine& carrier_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<IpcSignals> signals_;
  std::shared_ptr<const std::function<void(bool)>> look_;
  cuda::IpcPeers peers_;
  cuda::IpcLender lender_;
  CallOrder order_;
  DeviceEvent last_;  // where the last call ends
};

}  // namespace

Capabilities ipc_capabilities(Capabilities host) {
  host.reachable_memory = true;
  host.stream_barrier = true;
  return with_devices(std::move(host), Device::Kind::cuda, {{.name = kName, .collectives = kOnDevices}});
}

std::unique_ptr<Engine> make_ipc_engine(std::shared_ptr<Engine> carrier) {
  if (carrier->size() > static_cast<int>(cuda::kMostInputs))
    throw UsageError("the ipc engine of " + std::to_string(carrier->size()) + " ranks; accepted: at most " +
                     std::to_string(cuda::kMostInputs));
  return std::make_unique<IpcEngine>(std::move(carrier));
}

}  // namespace lockstep
