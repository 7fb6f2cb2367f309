// What every worker of a training run does.
#pragma once

#include "cli/train_plan.h"
#include "cli/train_recorder.h"
#include "lockstep/comm/group.h"

namespace lockstep::cli {

// Trains to the end of the plan, or to the step after SIGINT, SIGTERM, SIGHUP or SIGQUIT, at which all ranks
// stop together and a checkpoint is written. Gives 0, or the signal. Collective; throws Error.
int train(const TrainPlan& plan, const Group& world, const EventSink& sink);

// Whether such a signal has come while this process trained.
bool stop_was_noted();

}  // namespace lockstep::cli
