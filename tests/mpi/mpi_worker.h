// What a rank of the MPI tests can be asked to do. Each throws, or prints on standard error, what went wrong.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/comm/group.h"

namespace lockstep::testing {

// The group over all of mpirun's processes, by way of the registry.
Group mpi_world(std::chrono::milliseconds timeout);

int run_grids(const Group& world);  // all collectives, on the world and on parts of it
int run_work(const Group& world);   // asynchronous calls, messages, splits, divisors, concurrency

// One way to fail. Prints "rank 1: mismatch error: …" and goes without MPI's end, as a failed program does.
[[noreturn]] void run_fault(const std::string& name);

}  // namespace lockstep::testing
