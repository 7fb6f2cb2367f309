// Which job this process belongs to, the same when its launcher starts the workers again and for no other
// job.
#pragma once

#include <string>

namespace lockstep::cli {

// Empty without a launcher that starts workers again.
std::string job_name();

}  // namespace lockstep::cli
