// MPI's own collectives as an engine (written to MPI 3; used with Open MPI).
//
// Blocking; MPI knows no time limit, so Call::timeout has no effect here. Reductions of f16 and bf16 are
// refused: MPI has no such types. min and max of NaN, and the order of sums, are MPI's.
#pragma once

#include <memory>

#include "comm/engine/engine.h"

namespace lockstep {

// The engine over all processes that mpirun started. Initialises MPI unless the program has; then also
// finalises it at exit, unless an operation failed. Throws SystemError with MPI's message.
std::unique_ptr<Engine> make_mpi_engine();

}  // namespace lockstep
