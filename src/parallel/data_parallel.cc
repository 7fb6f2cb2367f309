#include "lockstep/parallel/data_parallel.h"

#include "grad/whole_slices.h"

namespace lockstep {

DataParallel::DataParallel(const ModuleRef& module, Group group, const DataParallelOptions& options)
    : Replicated({.name = "DataParallel",
                  .exchange = all_reduce_exchange({.algorithm = options.algorithm, .order = options.order})},
                 module, std::move(group), options),
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
