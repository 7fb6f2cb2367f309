// Starting a training run: for `lockstep train` and for those that train as part of something else.
#pragma once

#include "recipe/train_options.h"
#include "report/run_display.h"

namespace lockstep::cli {

// Starts the workers of one run, feeds `report` with what they say, and gives the exit status: 0; 1 after one
// line on standard error; 128 + signal. Throws UsageError for what the workers refuse. `what` begins
// messages. `on_line`: those of `given` that were flags, of which one that would change nothing is refused
// once the checkpoint's options are known too.
int start_training(const TrainOptions& options, const Given& given, RunDisplay& report, const char* what,
                   const Given& on_line = {});

}  // namespace lockstep::cli
