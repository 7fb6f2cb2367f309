// The trainer: what `lockstep train` does, for a model, data and loss of your own.
//
//   lockstep::Trainer trainer(net,                                   // shared_ptr or holder, with forward(x)
//                             {.train = train, .test = test,         // datasets (data/dataset.h)
//                              .loss = [](const auto& out, const auto& batch) {
//                                return torch::nll_loss(out, batch.target);
//                              },
//                              .metrics = {{"accuracy", lockstep::count_correct}}},
//                             {.lanes = 4, .lane_batch = 32, .epochs = 5, .out = "runs/net",
//                              .if_there = lockstep::IfThere::resume});
//   return trainer.run().exit_status();
//
// Alone it is one worker; under lockstep run, torchrun, mpirun or srun as many as were started, and the
// weights have the same bits for every number of them that shares the lanes (comm/lanes.h).
//
// The run's folder gets index.html with the plots, config.json, summary.json, steps.csv, epochs.csv,
// evaluations.csv, buckets.csv, latency.csv, trace.json and checkpoints/. SIGINT, SIGTERM, SIGHUP and SIGQUIT
// end the step and write a checkpoint; the same program goes on from there with IfThere::resume, also after
// it was killed, and after a restart by its launcher in any case. Handlers of the program's own come back
// when run() returns.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"
#include "lockstep/offload/offload.h"
#include "lockstep/optim/grad_scaler.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/parallel/module_ref.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep {

// The mean loss of a batch, a scalar to run backward from. Where the dataset's examples weigh differently
// (Dataset::weights) a training batch has them as batch["weights"]: their weighted mean.
using Loss = std::function<torch::Tensor(const torch::Tensor& output, const Batch& batch)>;

// What is told of an evaluation: the sum over all batches by the count over all batches.
struct MetricSum {
  double sum = 0;
  double count = 0;
};
using Metric = std::function<MetricSum(const torch::Tensor& output, const Batch& batch)>;

// How many targets are the likeliest class of [batch, …, classes], and how many there are. As "accuracy" it
// has a place of its own on the page and in the files.
MetricSum count_correct(const torch::Tensor& output, const Batch& batch);

// What is learnt from what.
struct Task {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test = {};  // null: nothing is evaluated
  Loss loss;
  std::vector<std::pair<std::string, Metric>> metrics = {};
  // What the loss and the metrics get; empty: the model's forward(batch.data). For models of several inputs.
  std::function<torch::Tensor(const Batch& batch)> forward = {};
  // Loss and metrics take outputs on a GPU in the type in which they were computed, as
  // lockstep::cross_entropy (models/cross_entropy.h) does. Without it, and on the processor, they get f32.
  bool takes_low_precision = false;
};

// What is done where the folder has a run already.
enum class IfThere : std::uint8_t {
  refuse,     // UsageError
  resume,     // goes on from its newest checkpoint; one that is through is left as it is
  overwrite,  // removes it, and nothing else
};

struct TrainerOptions {
  // How page, summary and messages call them.
  std::string model_name = "model";
  std::string data_name = "data";

  // What defines the run: a run that goes on has to have the same.
  int lanes = 0;  // 0: one a worker, or as many as the run that goes on has
  int lane_batch = 32;
  LastStep last_step = LastStep::wrap;
  bool augment = true;  // Dataset::get is given a stream of random numbers
  std::uint64_t seed = 0;
  int threads = 1;  // of a worker, that libtorch computes with
  // sgd, adam, adamw, lars, lamb; torch-sgd, torch-adam, torch-adamw; onebit-adam, with
  // parallel.exchange = compressed({.method = "onebit-adam", .lanes = lanes, .seed = seed}) and `lanes`
  // given.
  std::string optimizer = "adamw";
  double momentum = 0.9;  // of sgd and lars
  bool nesterov = false;
  double weight_decay = 0;  // for every optimizer, lamb too
  // Parameters without weight decay, and with lars and lamb without a rate of their own: names, in which *
  // stands for any text, with commas between them; "1-d" for all of fewer than two dimensions; "none". Empty:
  // "1-d" for lars and lamb, "none" for the others. A name that no parameter has is a UsageError.
  std::string exclude = {};
  double trust_coefficient = 1e-3;  // of lars
  double trust_clip = 0;            // of lars and lamb; 0: none
  double clip_norm = 0;             // gradients are scaled to at most this norm (optim/clip.h); 0: none
  double clip_value = 0;            // gradients are clamped to ± this; 0: none
  ScheduleOptions schedule = {};    // the learning rate, schedule.lr, and its way over the run
  double warmup_epochs = 0;         // in place of schedule.warmup_steps, rounded to steps
  // fp32, bf16, fp16 or bf16-autocast (models/precision.h). With bf16 and fp16 the model's parameters become
  // that, forward gets floating-point inputs of that type (integers stay), and the optimizer keeps master
  // weights; loss and metrics get f32 outputs.
  std::string precision = "fp32";
  std::string loss_scaling = "auto";  // auto (with fp16), on or off
  GradScalerOptions scaler = {};
  // Where the model computes: cpu; cuda, the GPU of this worker's local rank (several share one where there
  // are fewer); or cuda:0, cuda:1 … Model, data, loss and metrics are there; the same bits for any number of
  // workers need `deterministic` there.
  std::string device = "cpu";
  bool deterministic =
      false;          // cuda: kernels with the same bits each time, or an error that names the operation
  bool tf32 = false;  // cuda: products of f32 may round their factors to ten bits
  bool channels_last = false;  // images and weights of convolutions with the channels side by side

  // How long it is; a run that goes on may be longer, unless its schedule depends on it.
  std::int64_t epochs = 0;  // both 0: one epoch
  std::int64_t steps = 0;

  // How it is done.
  // cuda: forward and backward are recorded once and replayed (train/captured_loss.h), for models that keep
  // the GPU waiting for the host; the same bits. With one lane a worker, and without random numbers in the
  // model.
  bool cuda_graph = false;
  std::string strategy = "ddp";   // parallel/strategies.h
  StrategyOptions parallel = {};  // a run that goes on has to have its `order`, and an exchange of its name
  // Where the optimizer's state lies (sgd, adam, adamw, lars, lamb); each worker's own.
  Offload offload = {};
  // cuda: what a worker may take of its GPU, MiB, for tensors and comm memory together; 0: all. More is an
  // error that says "out of memory".
  double gpu_memory_mb = 0;
  std::string on_nan = "stop";  // when the loss is not finite: stop, skip the step, or go-on
  // noise: the gradient noise scale from the lanes' gradients, of which there are two at least
  // (report/noise_scale.h); none
  std::string measure = "none";
  int loader_threads = 1;
  std::int64_t eval_every = 1;  // epochs; 0: never
  std::int64_t eval_batch = 100;

  // What is left of it.
  std::string out = "runs/model";
  IfThere if_there = IfThere::refuse;
  std::string init = {};              // a checkpoint whose weights a new run begins with, or its run's folder
  std::int64_t checkpoint_every = 0;  // steps; 0: at the end of every epoch; -1: never
  // on: they are written while training goes on (docs/training.md); off: training waits for them.
  std::string checkpoint_async = "on";
  std::int64_t keep = 2;          // newest checkpoints that stay; 0: all
  std::int64_t trace_steps = 50;  // first steps that trace.json shows
  bool quiet = false;             // rank 0 shows no progress
};

// What came of it, the same on every rank.
struct TrainerResult {
  std::int64_t steps = 0;                 // done so far, in all parts of the run
  std::optional<double> final_loss = {};  // mean of the last epoch's steps
  // Of the last evaluation that this start of the program made, if any: a run that was through has none.
  std::optional<double> validation_loss = {};
  std::map<std::string, double> metrics = {};  // likewise
  std::string params_sha256 = {};
  int stopped_by = 0;  // the signal at which the workers stopped; 0: it is through
  int exit_status() const { return stopped_by == 0 ? 0 : 128 + stopped_by; }
};

struct RunPlan;

class Trainer {
 public:
  // Collective. An empty group: init(); a program that asks for its own rank makes it first and gives it
  // here. Throws UsageError that names the option and what is accepted. A model in training mode keeps its
  // modules' modes (a frozen norm stays in eval()), one that is in eval() itself is put into train() whole.
  template <class Model>
  Trainer(const Model& model, Task task, TrainerOptions options = {}, Group world = {})
      : Trainer(ModuleRef(model), with_forward(model, std::move(task)), std::move(options),
                std::move(world)) {}
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains to the end, or until all workers stop at a signal. Once. Collective; throws Error. What a loss, a
  // metric or a dataset throws passes through, and this rank gives the group up: the others get a PeerError
  // that says so.
  TrainerResult run();

  // What lockstep train begins with: a plan that it has made itself (src/train/run_plan.h).
  Trainer(ModuleRef model, Task task, std::unique_ptr<RunPlan> plan, Group world);

 private:
  Trainer(ModuleRef model, Task task, TrainerOptions options, Group world);
  template <class Model>
  static Task with_forward(const Model& model, Task task) {
    if (!task.forward)
      task.forward = [own = model](const Batch& batch) mutable { return own->forward(batch.data); };
    return task;
  }

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
