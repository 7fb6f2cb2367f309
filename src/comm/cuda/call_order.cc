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

CallOrder::~CallOrder() {
  for (const auto& [index, streams] : gpus_)
    for (const cudaStream_t stream : {streams.posts, streams.work})
      if (stream != nullptr) give_stream(index, stream);
}

std::vector<DeviceEvent> CallOrder::points() const {
  std::vector<DeviceEvent> points;
  for (const auto& [index, streams] : gpus_)
    for (const cudaStream_t stream : {streams.posts, streams.work})
      if (stream != nullptr)
        points.push_back(CudaRuntime::get().record({{Device::Kind::cuda, index}, stream}));
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
  if (here.work == nullptr) here.work = take_stream(index);
  const CallStreams streams{{whole.device, here.posts}, {whole.device, here.work}};
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
  for (const Range& range : memory) open_.push_back({range, at, calls_});
  while (open_.size() > kMostOpen) {
    for (const auto& [index, streams] : gpus_)
      CudaRuntime::get().wait({{Device::Kind::cuda, index}, streams.posts}, open_.front().end);
    open_.erase(open_.begin());
  }
}

void CallOrder::end_elsewhere(const DeviceEvent& at) {
  open_.clear();
  elsewhere_ = at;
  for (auto& [index, streams] : gpus_) streams.behind_elsewhere = false;
}

}  // namespace lockstep::cuda
