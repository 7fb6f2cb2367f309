#include "lockstep/parallel/data_parallel.h"

#include "grad/whole_slices.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

Exchange exchange_of(const DataParallelOptions& options) {
  if (options.exchange && options.exchange->leaves != Exchange::Leaves::everything)
    throw UsageError("DataParallel updates whole parameters, and the exchange '" + options.exchange->name +
                     "' leaves each rank a part of the gradients; accepted: one that leaves everything");
  return all_reduce_exchange({.algorithm = options.algorithm, .order = options.order});
}

}  // namespace

DataParallel::DataParallel(const ModuleRef& module, Group group, const DataParallelOptions& options)
    : Replicated({.name = "DataParallel", .exchange = exchange_of(options)}, module, std::move(group),
                 options),
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
