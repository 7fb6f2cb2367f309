// Which job this process belongs to, the same when its launcher starts the workers again and for no other
// job.
#pragma once

#include <string>

namespace lockstep {

// Empty without a launcher that starts workers again.
std::string job_name();

// Whether job_name() gives names of this form.
bool is_job_name(const std::string& text);

}  // namespace lockstep
