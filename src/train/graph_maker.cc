#include "train/graph_maker.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/train/captured_loss.h"

namespace lockstep {

namespace {

// Streams of the pool and CUDA's default one are in no order by themselves.
void come_behind(const c10::Stream& stream, const c10::Stream& before) {
  c10::Event point(stream.device_type());
  point.record(before);
  point.block(stream);
}

}  // namespace

RecordingStream::RecordingStream(torch::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream own = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  come_behind(own, guard.getStream(device));
  before_ = guard.exchangeStream(own);
}

RecordingStream::~RecordingStream() {
  if (!before_) return;
  const c10::impl::VirtualGuardImpl guard(before_->device_type());
  const c10::Stream own = guard.exchangeStream(*before_);
  try {
    come_behind(*before_, own);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device failed, who uses it is told
  }
}

}  // namespace lockstep

#ifdef LOCKSTEP_HAS_TORCH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include <optional>

namespace lockstep {
namespace {

// Only this thread's calls are watched for what a record can't have: loaders and groups go on beside it.
template <class... Pool>
void begin(at::cuda::CUDAGraph& graph, Pool... pool) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
  if constexpr (sizeof...(Pool) == 0)
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  else
    graph.capture_begin(pool..., cudaStreamCaptureModeThreadLocal);
#else
  graph.capture_begin(pool...);
#endif
}

class CudaGraph final : public Graph {
 public:
  void replay() override { graph.replay(); }
  at::cuda::CUDAGraph graph;
};

// All on the current stream, on which gradients' accumulators were made, as backward goes where forward was.
class CudaGraphs final : public GraphMaker {
 public:
  explicit CudaGraphs(torch::Device device) {
    if (c10::cuda::getCurrentCUDAStream(device.index()) == c10::cuda::getDefaultCUDAStream(device.index()))
      throw UsageError(
          "a loss can't be recorded as a CUDA graph: the current stream is CUDA's default one; accepted: a "
          "RecordingStream from before the model was wrapped (train/captured_loss.h)");
  }

  void warm_up(const std::function<void()>& body) override { body(); }

  std::unique_ptr<Graph> record(const std::function<std::vector<torch::Tensor>()>& body) override {
    auto made = std::make_unique<CudaGraph>();
    first_ ? begin(made->graph, first_->pool()) : begin(made->graph);
    try {
      made->results = body();
    } catch (...) {
      try {
        made->graph.capture_end();  // or the stream would record for ever
      } catch (...) {               // NOLINT(bugprone-empty-catch): the reason is on its way
      }
      throw;
    }
    made->graph.capture_end();
    if (first_ == nullptr) first_ = &made->graph;
    return made;
  }

 private:
  at::cuda::CUDAGraph* first_ = nullptr;  // whose memory the others share; lives as long as they do
};

}  // namespace

std::shared_ptr<GraphMaker> make_cuda_graphs(torch::Device device) {
  return std::make_shared<CudaGraphs>(device);
}

}  // namespace lockstep
#else
namespace lockstep {

std::shared_ptr<GraphMaker> make_cuda_graphs(torch::Device) { throw UsageError("this build has no CUDA"); }

}  // namespace lockstep
#endif
