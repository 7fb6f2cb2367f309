// The engines that there are, in this build or not: what each is, and how a build gets it.
#pragma once

namespace lockstep {

struct KnownEngine {
  const char* name;
  const char* about;    // for people
  const char* package;  // of the system, and the option of this build, without which it is missing; empty:
  const char* option;   // it is always there
};

inline constexpr KnownEngine kKnownEngines[] = {
    {"shm", "the workers of one machine: our algorithms over shared memory", "", ""},
    {"tcp", "any workers: our algorithms over authenticated connections", "", ""},
    {"mpi", "workers that mpirun started: MPI's collectives, and ours over its messages", "libopenmpi-dev",
     "LOCKSTEP_MPI"},
    {"gloo", "any workers: Gloo's collectives, and ours over its messages", "libgloo-dev", "LOCKSTEP_GLOO"}};

}  // namespace lockstep
