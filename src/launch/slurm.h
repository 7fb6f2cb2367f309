// An agent that srun started, once on each node, needs no flags: SLURM says who and where it is.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::launcher {

struct SlurmNodes {
  int nodes = 1;
  int node = 0;
  std::string endpoint =
      {};  // the step's first host, and a port that follows from the job's and step's number
};

// The value of an environment variable; none when it is not set.
using Lookup = std::function<std::optional<std::string>(const char* name)>;

// None unless srun started one task on each of several nodes: in a batch script, or as one of several tasks
// of a node, a launcher is by itself. Throws UsageError naming a variable that makes no sense.
std::optional<SlurmNodes> slurm_nodes(const Lookup& environment);
std::optional<SlurmNodes> slurm_nodes();  // of this process

// The first host of a list such as "n1,n2", "node[01-03,7]", "gpu-[2,5]-ib", "rack[1-2]n[08-11]": "node01".
// Empty when it is no such list.
std::string first_slurm_host(std::string_view list);

}  // namespace lockstep::launcher
