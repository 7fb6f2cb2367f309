// A sampler for torch::data::make_data_loader: each worker gets its part of one global shuffle.
//
//   lockstep::DistributedSampler sampler(dataset.size().value(), world, {.seed = 1});
//   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, /*batch size of a worker*/ 32);
//   for (int epoch = 0; epoch < 10; ++epoch)       // another order each, without set_epoch too
//     for (auto& batch : *loader) { … }            // the same number of batches on every worker
//
// A step is one batch of each worker: workers × batch examples, one after the other in the epoch's order
// (epoch_order), and worker r has the r-th piece. So the union over the workers is what a single one with a
// batch of workers × batch gets, and lockstep::loader with as many lanes as workers gives the same pieces.
//
// Copies are one sampler: a data loader keeps a copy, and set_epoch() of the one that made it counts there.
// For the thread that iterates over the data loader.
#pragma once

#include <c10/util/Optional.h>
#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/data/sampler.h"

namespace lockstep {

struct DistributedSamplerOptions {
  std::uint64_t seed = 0;
  bool shuffle = true;
  // As for lanes, but that with short_ the last batch is equally small on all workers: fewer examples than
  // there are workers are taken twice to that end. A plain loop has no way to do without a worker.
  LastStep last_step = LastStep::wrap;
};

class DistributedSampler final : public torch::data::samplers::Sampler<> {
 public:
  // `size` examples in all. Throws UsageError naming what is wrong.
  DistributedSampler(std::int64_t size, const Group& group, DistributedSamplerOptions options = {});
  DistributedSampler(std::int64_t size, int rank, int workers, DistributedSamplerOptions options = {});

  // Which epoch the next loop goes through, and how many examples all workers together have had of it. In a
  // loop that is resumed: batches seen × workers × batch.
  void set_epoch(std::int64_t epoch, std::int64_t examples_done = 0);
  std::int64_t epoch() const;

  // Called by the data loader when a loop begins: goes to the next epoch, unless this is the first loop or
  // set_epoch() or load() said where to begin.
  void reset(c10::optional<std::size_t> new_size = c10::nullopt) override;
  // This worker's part of the next step; nothing at the end of the epoch. Throws UsageError when there is not
  // one full step and the last step is drop.
  c10::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // The epoch and what is done of it, for any number of workers. A data loader asks ahead (max_jobs), so
  // within an epoch this is further than the loop is: there set_epoch() with the loop's own count is exact.
  // load() throws UsageError when the archive's size, seed or shuffle is another.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
