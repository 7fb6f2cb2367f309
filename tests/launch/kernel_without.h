// Stands for an older kernel, or a container's filter, that does not know some system calls.
#pragma once

#include <vector>

namespace lockstep::test {

// From here on these system calls (SYS_…) fail with ENOSYS in this process and all that it starts. There is
// no way back: call it in a child. Exits with status 98 where the system gives no filters.
void without_system_calls(const std::vector<long>& numbers);

}  // namespace lockstep::test
