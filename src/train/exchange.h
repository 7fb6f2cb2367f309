// A step's exchange: what the strategy tells of it, and what the group's cost table expects of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/strategy.h"
#include "lockstep/train/trainer.h"
#include "report/step_figures.h"
#include "train/prediction.h"

namespace lockstep {

// Fills in the record's comm, hidden and exposed.
std::vector<BucketTimes> take_exchange(const ExchangeLog& log, StepRecord& record);
// Adds what came behind the optimizer, none of which is hidden.
std::vector<BucketTimes> take_shared(const ExchangeLog& log, StepRecord& record);

// Throws UsageError when the run's algorithm can't carry a bucket of so many bytes in this group: by an
// all-reduce, or by a reduce-scatter, as `strategy` does it. A program's own exchange has none to check.
void check_algorithm(const Group& group, const std::string& strategy, const StrategyOptions& options,
                     std::size_t bucket_bytes);
// The order in which the strategy's own exchange sums gradients: "canonical", "any", or the name of an
// algorithm that has one of its own. The last two make a run's bits depend on the number of workers.
std::string order_of_sums(const Group& group, const std::string& strategy, const StrategyOptions& options);
// May a run that summed in the order `then` go on in the order `now`?
bool goes_on_in_order(const std::string& then, const std::string& now);
// Does the run's exchange tell what it saves (Exchange::figures)?
bool tells_figures(const TrainerOptions& options);
// The largest bucket, before the first exchange.
std::size_t largest_bucket_bytes(const Strategy& strategy);

// Sets what the exchanges of the buckets, and of what follows them, are expected to take. False when the
// strategy's exchange or the group's engine can't say. The profile's buckets are those of the last exchange,
// and nothing is under way. `buffers_s`: the exchange of the module's buffers, which is a part of what comes
// after.
bool expect_exchange(const Strategy& strategy, StepProfile& profile, double& buffers_s);

// Measures what all-reduces and `compute`, a step's local work, do to each other. Collective, after a few
// steps.
Crowding measure_crowding(const Group& world, const std::function<void()>& compute);

}  // namespace lockstep
