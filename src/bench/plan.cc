#include "bench/plan.h"

#include <algorithm>

namespace lockstep {

bool BenchPlan::has_engine(const std::string& name) const {
  return std::ranges::find(engines, name) != engines.end();
}

std::vector<std::string> built_engines() {
  std::vector<std::string> names = {"shm", "tcp", "tls"};
#ifdef LOCKSTEP_HAS_MPI
  names.emplace_back("mpi");
#endif
#ifdef LOCKSTEP_HAS_GLOO
  names.emplace_back("gloo");
#endif
  return names;
}

}  // namespace lockstep
