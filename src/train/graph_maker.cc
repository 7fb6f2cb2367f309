#include "train/graph_maker.h"

#include "lockstep/base/error.h"

#ifdef LOCKSTEP_HAS_TORCH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
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

// All on one stream, as backward goes where forward was.
class CudaGraphs final : public GraphMaker {
 public:
  explicit CudaGraphs(torch::Device device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  void warm_up(const std::function<void()>& body) override { aside(body); }

  std::unique_ptr<Graph> record(const std::function<std::vector<torch::Tensor>()>& body) override {
    auto made = std::make_unique<CudaGraph>();
    aside([&] {
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
    });
    if (first_ == nullptr) first_ = &made->graph;
    return made;
  }

 private:
  // On the stream of records, behind what the current one holds; what that is given next comes after.
  void aside(const std::function<void()>& body) {
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(stream_.device_index());
    at::cuda::CUDAEvent before;
    before.record(current);
    before.block(stream_);
    {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      body();
    }
    at::cuda::CUDAEvent after;
    after.record(stream_);
    after.block(current);
  }

  c10::cuda::CUDAStream stream_;
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
