// What SLURM's environment says beyond a worker's rank: the step it belongs to, and where its first task can
// be found.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::slurm {

// The value of an environment variable; none when it is not set.
using Lookup = std::function<std::optional<std::string>(const char* name)>;

// The first of these variables that is set and not empty.
std::optional<std::string> first_of(const Lookup& environment, std::initializer_list<const char*> names);

// The number of the step that srun made; none in a batch script, which merely inherits the allocation's
// variables.
std::optional<std::string> step_of(const Lookup& environment);

// The first host of a list such as "n1,n2", "node[01-03,7]", "gpu-[2,5]-ib", "rack[1-2]n[08-11]": "node01".
// Empty when it is no such list.
std::string first_host(std::string_view list);

// "host:port": the step's first host, and a port that follows from the job's and step's number. Throws
// UsageError when the list of hosts makes no sense.
std::string endpoint(const Lookup& environment);

}  // namespace lockstep::slurm
