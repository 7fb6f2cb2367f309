// What records work of a GPU and replays it: CUDA graphs.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

namespace lockstep {

// Work that was recorded. `results`: where each replay leaves what it computes; some may be undefined.
class Graph {
 public:
  virtual ~Graph() = default;
  // Put on the current stream.
  virtual void replay() = 0;

  std::vector<torch::Tensor> results;
};

class GraphMaker {
 public:
  virtual ~GraphMaker() = default;
  // Runs `body` as record() would, and really: libraries choose their kernels, and take their memory.
  virtual void warm_up(const std::function<void()>& body) = 0;
  // What `body` puts on the GPU, which does not run. Graphs of one maker are replayed in the order in which
  // they were recorded, since they share memory: what one of them keeps, later ones find.
  virtual std::unique_ptr<Graph> record(const std::function<std::vector<torch::Tensor>()>& body) = 0;
};

// On that GPU. Throws UsageError in a build without CUDA.
std::shared_ptr<GraphMaker> make_cuda_graphs(torch::Device device);

}  // namespace lockstep
