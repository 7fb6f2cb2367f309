#include "lockstep/parallel/data_parallel.h"

#include "grad/whole_slices.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

const DataParallelOptions& of_whole_parameters(const DataParallelOptions& options) {
  if (options.parameters != ParameterAccess::chosen || options.gathered_mb != 0 ||
      options.shard_workers != 0 || options.offload_params)
    throw UsageError(
        "DataParallel: options `parameters`, `gathered_mb`, `shard_workers` and `offload_params` are of "
        "parameters in shards; accepted: without them, or Sharded with the stage `parameters` (zero3)");
  return options;
}

}  // namespace

DataParallel::DataParallel(const ModuleRef& module, Group group, const DataParallelOptions& options)
    : Replicated({.name = "DataParallel",
                  .exchange = all_reduce_exchange({.algorithm = options.algorithm, .order = options.order})},
                 module, std::move(group), of_whole_parameters(options)),
      slices_(std::make_unique<WholeSlices>(parameters())) {}

DataParallel::~DataParallel() = default;

std::span<const Slice> DataParallel::slices() { return slices_->now(); }

void DataParallel::end_step() {
  slices_->forget();
  Replicated::end_step();
}

void DataParallel::join(const std::vector<torch::Tensor>& parts, const Take& take) {
  join_whole(parts, take);
}

torch::Tensor DataParallel::cut(std::size_t, const torch::Tensor& whole) const { return whole; }

void DataParallel::rebind(Group group) {
  slices_->forget();
  bind(std::move(group));
}

}  // namespace lockstep
