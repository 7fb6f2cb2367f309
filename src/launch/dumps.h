// The flight recorders that failed workers left behind.
#pragma once

#include <string>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// Fills dump_dir, dumps and dump_summary of `report` from the dumps in `folder`, if there are any: the
// summary of the first failing rank, else of the first survivor that wrote one.
void find_dumps(const std::string& folder, LaunchReport& report);

}  // namespace lockstep::launcher
