#include "lockstep/parallel/data_parallel.h"

#include "grad/whole_slices.h"
#include "parallel/shard_home.h"

namespace lockstep {
namespace {

const DataParallelOptions& of_whole_parameters(const DataParallelOptions& options) {
  refuse_options_of_shards("DataParallel", options, options.shard_workers != 0);
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
