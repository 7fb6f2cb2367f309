#include "comm/cuda/call_order.h"

#include <algorithm>

#include "comm/cuda/runtime.h"
#include "comm/cuda/streams.h"

namespace lockstep::cuda {
namespace {

// More calls than a step has buckets. Beyond that the oldest is waited for, which is over by then.
constexpr std::size_t kMostOpen = 512;

bool overlap(const CallOrder::Range& a, const CallOrder::Range& b) {
  return a.begin < b.end && b.begin < a.end;
}
bool inside(const CallOrder::Range& a, const CallOrder::Range& b) {
  return b.begin <= a.begin && a.end <= b.end;
}

}  // namespace

template <class F>
void CallOrder::for_each_stream(F&& f) const {
  for (const auto& [index, streams] : gpus_) {
    if (streams.posts != nullptr) f(index, streams.posts);
    for (const cudaStream_t stream : streams.work)
      if (stream != nullptr) f(index, stream);
  }
}

CallOrder::~CallOrder() {
  for_each_stream([](int index, cudaStream_t stream) { give_stream(index, stream); });
}

std::vector<DeviceEvent> CallOrder::points() const {
  std::vector<DeviceEvent> points;
  for_each_stream([&](int index, cudaStream_t stream) {
    points.push_back(CudaRuntime::get().record({{Device::Kind::cuda, index}, stream}));
  });
  return points;
}

CallStreams CallOrder::begin(const DeviceStream& whole, const DeviceEvent& start,
                             std::span<const Range> memory) {
  const auto shared = [&](const Open& open) {
    return std::ranges::any_of(memory, [&](const Range& range) { return overlap(range, open.range); });
  };
  if (std::ranges::any_of(open_,
                          [&](const Open& open) { return calls_ - open.call < kInARow && shared(open); }))
    return {whole, whole};
  CudaRuntime& runtime = CudaRuntime::get();
  const int index = whole.device.index;
  Streams& here = gpus_[index];
  if (here.posts == nullptr) here.posts = take_stream(index);
  cudaStream_t& work = here.work[calls_ % kWorkStreams];
  if (work == nullptr) work = take_stream(index);
  CallStreams streams{{whole.device, here.posts}, {whole.device, work}};
  const auto over = [&](const DeviceEvent& event) { return runtime.passed(event); };
  streams.ready =
      over(start) && over(elsewhere_) && over(here.behind_oldest) &&
      std::ranges::all_of(open_, [&](const Open& open) { return !shared(open) || over(open.end); });
  if (streams.ready) return streams;
  runtime.wait(streams.posts, start);
  if (!here.behind_elsewhere) runtime.wait(streams.posts, elsewhere_);
  here.behind_elsewhere = true;
  for (const Open& open : open_)
    if (shared(open)) runtime.wait(streams.posts, open.end);
  return streams;
}

void CallOrder::end(std::span<const Range> memory, const DeviceEvent& at) {
  ++calls_;
  // Who waits for this call's end has waited for theirs, since this call has.
  std::erase_if(open_, [&](const Open& open) {
    return std::ranges::any_of(memory, [&](const Range& range) { return inside(open.range, range); });
  });
  for (const Range& range : memory)
    if (range.begin < range.end) open_.push_back({range, at, calls_});
  while (open_.size() > kMostOpen) {
    for (auto& [index, streams] : gpus_) {
      const DeviceStream posts{{Device::Kind::cuda, index}, streams.posts};
      CudaRuntime::get().wait(posts, open_.front().end);
      streams.behind_oldest = CudaRuntime::get().record(posts);
    }
    open_.erase(open_.begin());
  }
}

void CallOrder::end_elsewhere(const DeviceEvent& at) {
  open_.clear();
  elsewhere_ = at;
  for (auto& [index, streams] : gpus_) streams.behind_elsewhere = false;
}

}  // namespace lockstep::cuda
