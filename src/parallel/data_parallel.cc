#include "lockstep/parallel/data_parallel.h"

#include <ATen/CPUGeneratorImpl.h>

#include <unordered_set>

#include "grad/bucket_size.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "parallel/buffers.h"
#include "parallel/replicas.h"

namespace lockstep {
namespace {

// Tied weights once, under their first name.
std::vector<NamedTensor> trained(const torch::nn::Module& module) {
  std::vector<NamedTensor> list;
  std::unordered_set<const void*> seen;
  for (const auto& entry : module.named_parameters())
    if (entry.value().defined() && entry.value().requires_grad() &&
        seen.insert(entry.value().unsafeGetTensorImpl()).second)
      list.push_back({entry.key(), entry.value()});
  return list;
}

std::vector<NamedTensor> everything(const torch::nn::Module& module) {
  std::vector<NamedTensor> list;
  for (const auto& entry : module.named_parameters())
    if (entry.value().defined()) list.push_back({entry.key(), entry.value().detach()});
  for (const auto& entry : module.named_buffers())
    if (entry.value().defined()) list.push_back({entry.key(), entry.value()});
  return list;
}

std::size_t megabytes(double mb, const char* name) {
  if (!(mb > 0) || mb > 1e6)
    throw UsageError(std::string(name) + " = " + std::to_string(mb) + "; accepted: above 0, at most 1000000");
  return static_cast<std::size_t>(mb * (1 << 20));
}

}  // namespace

struct DataParallel::Lanes {
  Lanes(torch::nn::Module& module, const Group& group) : buffers(module, group) {}

  // The open lane's buffers join the sum, once.
  void gather() {
    if (!open || gathered) return;
    gathered = true;
    buffers.end_lane(position, info.weight);
  }

  BufferAverager buffers;
  bool open = false;      // a scope lives
  bool in_step = false;   // this step is made of lanes
  bool gathered = false;  // the open lane's buffers are in the sum
  int position = 0;       // of the open lane among this worker's
  LaneInfo info;
};

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, Group group,
                           DataParallelOptions options)
    : module_(std::move(module)), group_(std::move(group)), options_(std::move(options)) {
  if (module_ == nullptr) throw UsageError("DataParallel of no module");
  if (options_.check_replicas_every < 0)
    throw UsageError("check_replicas_every = " + std::to_string(options_.check_replicas_every) +
                     "; accepted: 0 (never) or more");
  const std::vector<NamedTensor> all = everything(*module_);
  check_form(group_, all);
  {
    const torch::NoGradGuard no_grad;
    broadcast_all(group_, all);
  }
  if (options_.bucket_cap_mb == 0)
    options_.bucket_cap_mb = bucket_mb_for(group_, options_.algorithm, options_.order);
  lanes_ = std::make_unique<Lanes>(*module_, group_);
  reducer_ = std::make_unique<Reducer>(
      trained(*module_), group_,
      ReducerOptions{.bucket_bytes = megabytes(options_.bucket_cap_mb, "bucket_cap_mb"),
                     .first_bucket_bytes = megabytes(options_.first_bucket_mb, "first_bucket_mb"),
                     .find_unused_parameters = options_.find_unused_parameters,
                     .hook = options_.hook,
                     .algorithm = options_.algorithm,
                     .order = options_.order,
                     .before_wait = [this](bool idle) { exchange_buffers(idle); },
                     .after_wait = [this] { lanes_->buffers.finish(); }});
}

DataParallel::~DataParallel() = default;

void DataParallel::exchange_buffers(bool idle) {
  Lanes& lanes = *lanes_;
  if (idle) return lanes.buffers.exchange(0, kDivisorOfOthers);
  if (!lanes.in_step) return lanes.buffers.exchange();
  lanes.gather();
  lanes.buffers.exchange(lanes.position + 1, lanes.info.total_weight);
}

DataParallel::LaneScope DataParallel::lane(const LaneInfo& info) { return LaneScope(*this, info); }
DataParallel::NoSync DataParallel::no_sync() { return NoSync(*this); }

void DataParallel::begin_lane(const LaneInfo& info) {
  Lanes& lanes = *lanes_;
  if (lanes.open) throw UsageError("a lane begins inside another; end its scope first");
  if (!(info.weight > 0) || !(info.total_weight >= info.weight))
    throw UsageError("lane " + std::to_string(info.index) + " of step " + std::to_string(info.step) +
                     " has weight " + std::to_string(info.weight) + " of " +
                     std::to_string(info.total_weight) + "; accepted: a positive part of the total");
  const int position = info.first ? 0 : lanes.position + 1;
  reducer_->begin_lane({position, info.weight, info.total_weight, info.last});
  lanes.open = lanes.in_step = true;
  lanes.gathered = false;
  lanes.position = position;
  lanes.info = info;
  lanes.buffers.begin_lane(position);
}

void DataParallel::end_lane() noexcept {
  Lanes& lanes = *lanes_;
  lanes.gather();
  lanes.open = false;
}

std::vector<NamedTensor> DataParallel::parameters() const { return reducer_->parameters(); }

void DataParallel::synchronize() { reducer_->synchronize(); }

void DataParallel::end_step() {
  reducer_->end_step();
  lanes_->in_step = false;
  ++steps_;
  if (options_.check_replicas_every > 0 && steps_ % options_.check_replicas_every == 0) check_replicas();
}

void DataParallel::reset() {
  reducer_->reset();
  lanes_->in_step = lanes_->open = false;
}

void DataParallel::check_replicas() { check_bits(group_, everything(*module_)); }

// The lane's own stream, and afterwards the program's again.
DataParallel::LaneScope::LaneScope(DataParallel& owner, const LaneInfo& info) : owner_(owner) {
  owner_.begin_lane(info);
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator_state_ = generator.get_state();
  generator.set_current_seed(
      stream_seed(info.seed, static_cast<std::uint64_t>(info.step), static_cast<std::uint64_t>(info.index)));
}

DataParallel::LaneScope::~LaneScope() {
  auto generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(generator_state_);
  }
  owner_.end_lane();
}

DataParallel::NoSync::NoSync(DataParallel& owner) : owner_(owner), before_(owner.reducer_->sync()) {
  owner_.reducer_->set_sync(false);
}

DataParallel::NoSync::~NoSync() { owner_.reducer_->set_sync(before_); }

}  // namespace lockstep
