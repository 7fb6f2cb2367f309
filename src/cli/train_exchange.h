// A step's exchange: what the reducer tells of it, and what the group's cost table expects of it.
#pragma once

#include <vector>

#include "cli/train_metrics.h"
#include "cli/train_options.h"
#include "cli/train_prediction.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep::cli {

// Of the last exchange, before the next begins. Fills in the record's comm, hidden and exposed.
std::vector<BucketTimes> take_exchange(const Reducer& reducer, StepRecord& record);

// Sets what the exchanges of the buckets, and of what follows them, are expected to take. False when the
// group's engine has no cost table. The profile's buckets are those of the last exchange, and nothing is
// under way. `buffers_s`: the exchange of the module's buffers, which is a part of what comes after.
bool expect_exchange(DataParallel& ddp, const TrainOptions& options, StepProfile& profile, double& buffers_s);

// Processor time that a second of exchange takes on the core where the worker computes: measured with a few
// all-reduces; 0 where there are cores enough. Collective.
double measure_exchange_cpu(const Group& world, std::int64_t threads);

}  // namespace lockstep::cli
