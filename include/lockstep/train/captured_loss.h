// A loss on a GPU whose forward and backward are recorded once, as CUDA graphs, and replayed from then on:
// the host says two words a step instead of one for each kernel. For models of many small kernels, whose GPU
// waits for the host. The bits are those of the function itself. TrainerOptions::cuda_graph does it in the
// trainer.
//
//   const lockstep::RecordingStream stream(device);  // before the model is wrapped; outlives all of it
//   lockstep::CapturedLoss loss(net, [net](const std::vector<torch::Tensor>& in) mutable {
//     return lockstep::cross_entropy(net->forward(in[0]), in[1]);
//   });
//   for (auto& lane : step) {                        // or a plain loop
//     auto scope = strategy.lane(lane);
//     loss({lane.data, lane.target}).backward();     // once a call, and before the next call
//   }
//   optimizer.step();
//
// What is recorded is from the inputs to the gradients of the model's parameters. Those come out of
// backward() like any others: strategies exchange them, optimizers, clipping and loss scaling are as they
// are, each put on the GPU by the host as ever. They come all at once, so that none is exchanged beside
// backward. Where no gradient was left from before, grad() lies in the graph's memory: the next backward()
// writes it anew.
//
// The first call warms up (three forwards and backwards, of which nothing stays) and records. Later ones copy
// their inputs into the graph's. One whose inputs have another number, size or type (the last batch of an
// epoch) is computed as the function says. On the processor all are.
//
// What the function does on the host happens while it is recorded, and never again: no reading of the GPU's
// values (item(), sizes that depend on them), no random numbers, no collectives. Where it tries, or the model
// has a SyncBatchNorm, or units that are gathered or recomputed, that is a UsageError. Parameters and buffers
// stay where they are in memory; a parameter that has moved since is noticed, and all is recorded again.
#pragma once

#include <c10/core/Stream.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/module_ref.h"

namespace lockstep {

class GraphMaker;  // src/train/graph_maker.h

// This thread's current stream is one of libtorch's pool while it lives. What autograd keeps of parameters,
// from the model's wrapping on, belongs to the stream that was current then, and no other may be recorded:
// CUDA's default stream never can. What it is given comes behind what the stream before it held, and the
// other way round when it goes. Nothing on the processor.
class RecordingStream {
 public:
  explicit RecordingStream(torch::Device device);
  ~RecordingStream();
  RecordingStream(const RecordingStream&) = delete;
  RecordingStream& operator=(const RecordingStream&) = delete;

 private:
  std::optional<c10::Stream> before_;
};

class CapturedLoss {
 public:
  using Function = std::function<torch::Tensor(const std::vector<torch::Tensor>& inputs)>;

  // `function`: a scalar of the inputs and of the model's parameters. Throws UsageError for a model that
  // can't be recorded.
  CapturedLoss(const ModuleRef& model, Function function);
  // With another way to record, for tests.
  CapturedLoss(const ModuleRef& model, Function function, std::shared_ptr<GraphMaker> maker);

  // Throws UsageError where the function can't be recorded, with the reason.
  torch::Tensor operator()(const std::vector<torch::Tensor>& inputs);

  // How many calls were replays.
  std::int64_t replays() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
