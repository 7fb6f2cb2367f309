// Who this worker is, as its launcher says in the environment.
#pragma once

#include <string>

namespace lockstep {

struct Identity {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  // The same text on every worker of one start of one job, different for any other job or restart on
  // this machine. Empty when there is only one worker and no launcher.
  std::string job;
  // Who said so: "lockstep run", "torchrun", "Open MPI", "PMI", "SLURM" or "none".
  std::string launcher = "none";
  bool started_by_mpi() const { return launcher == "Open MPI" || launcher == "PMI"; }

  // Reads, in this order: our variables and torchrun's (RANK, WORLD_SIZE, LOCAL_RANK,
  // LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, …; LOCKSTEP_JOB makes it ours),
  // Open MPI's (OMPI_COMM_WORLD_RANK, …), SLURM's (SLURM_PROCID, SLURM_NTASKS, …, only under srun, not
  // in a batch script) and PMI's (PMI_RANK, PMI_SIZE). Throws UsageError for a half-set family (naming
  // what is set and what is missing), a value that is no number, rank >= size and the like.
  static Identity from_environment();
};

}  // namespace lockstep
