#include "lockstep/data/distributed_sampler.h"

#include <torch/serialize/archive.h>

#include <bit>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void write(torch::serialize::OutputArchive& archive, const char* key, std::int64_t value) {
  archive.write(key, torch::tensor(value, torch::kInt64), /*is_buffer=*/true);
}

std::int64_t read(torch::serialize::InputArchive& archive, const char* key) {
  torch::Tensor value;
  if (!archive.try_read(key, value, /*is_buffer=*/true) || value.numel() != 1 ||
      value.scalar_type() != torch::kInt64)
    throw UsageError("archive: '" + std::string(key) +
                     "' is missing or no number; accepted: what DistributedSampler::save wrote");
  return value.item<std::int64_t>();
}

}  // namespace

struct DistributedSampler::State {
  std::int64_t size;
  int rank;
  int workers;
  DistributedSamplerOptions options;
  std::int64_t epoch = 0;
  std::int64_t taken = 0;     // of the epoch's examples, by all workers
  bool placed = true;         // the next loop begins here
  std::int64_t ordered = -1;  // the epoch that `order` is of
  std::vector<std::int64_t> order = {};
};

DistributedSampler::DistributedSampler(std::int64_t size, const Group& group,
                                       DistributedSamplerOptions options)
    : DistributedSampler(size, group.rank(), group.size(), options) {}

DistributedSampler::DistributedSampler(std::int64_t size, int rank, int workers,
                                       DistributedSamplerOptions options) {
  if (size < 1) throw UsageError("sampler: " + std::to_string(size) + " examples; accepted: 1 or more");
  if (workers < 1 || rank < 0 || rank >= workers)
    throw UsageError("sampler: worker " + std::to_string(rank) + " of " + std::to_string(workers) +
                     "; accepted: 0 to the number of workers - 1");
  state_ = std::make_shared<State>(State{.size = size, .rank = rank, .workers = workers, .options = options});
}

void DistributedSampler::set_epoch(std::int64_t epoch, std::int64_t examples_done) {
  if (epoch < 0 || examples_done < 0)
    throw UsageError("sampler: epoch " + std::to_string(epoch) + ", " + std::to_string(examples_done) +
                     " examples of it done; accepted: 0 or more");
  state_->epoch = epoch;
  state_->taken = examples_done;
  state_->placed = true;
}

std::int64_t DistributedSampler::epoch() const { return state_->epoch; }

void DistributedSampler::reset(c10::optional<std::size_t> new_size) {
  State& s = *state_;
  if (new_size && static_cast<std::int64_t>(*new_size) != s.size) {
    if (*new_size == 0) throw UsageError("sampler: 0 examples; accepted: 1 or more");
    s.size = static_cast<std::int64_t>(*new_size);
    s.ordered = -1;
  }
  if (!s.placed) {
    ++s.epoch;
    s.taken = 0;
  }
  s.placed = false;
}

c10::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  State& s = *state_;
  if (batch_size == 0) throw UsageError("sampler: a batch of 0; accepted: 1 or more");
  const std::int64_t step = s.workers * static_cast<std::int64_t>(batch_size);
  const std::int64_t left = s.size - s.taken;
  if (left <= 0) return c10::nullopt;
  auto share = static_cast<std::int64_t>(batch_size);
  if (left < step && s.options.last_step == LastStep::drop) {
    if (s.size < step)
      throw UsageError("sampler: " + std::to_string(s.size) + " examples are less than one step of " +
                       std::to_string(s.workers) + " workers × " + std::to_string(batch_size) +
                       ", and the last step is drop; accepted: " + std::to_string(step) +
                       " examples or more, or a last step of short or wrap");
    s.taken = s.size;
    return c10::nullopt;
  }
  if (left < step && s.options.last_step == LastStep::short_) share = (left + s.workers - 1) / s.workers;
  if (s.ordered != s.epoch) {
    s.order = epoch_order(s.size, s.options.seed, s.epoch, s.options.shuffle);
    s.ordered = s.epoch;
  }
  std::vector<std::size_t> examples;
  const std::int64_t first = s.taken + s.rank * share;
  for (std::int64_t i = first; i < first + share; ++i)
    examples.push_back(static_cast<std::size_t>(s.order[static_cast<std::size_t>(i % s.size)]));
  s.taken += step;
  return examples;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const State& s = *state_;
  write(archive, "size", s.size);
  write(archive, "seed", std::bit_cast<std::int64_t>(s.options.seed));
  write(archive, "shuffle", s.options.shuffle ? 1 : 0);
  write(archive, "epoch", s.epoch);
  write(archive, "taken", s.taken);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  State& s = *state_;
  const auto same = [&](const char* what, std::int64_t own) {
    if (const std::int64_t saved = read(archive, what); saved != own)
      throw UsageError("sampler: its " + std::string(what) + " is " + std::to_string(own) +
                       ", the archive's " + std::to_string(saved) + "; accepted: the same");
  };
  same("size", s.size);
  same("seed", std::bit_cast<std::int64_t>(s.options.seed));
  same("shuffle", s.options.shuffle ? 1 : 0);
  const std::int64_t epoch = read(archive, "epoch"), taken = read(archive, "taken");
  set_epoch(epoch, taken);
  s.placed = taken < s.size;  // an epoch that is over: the next loop begins the one after it
}

}  // namespace lockstep
