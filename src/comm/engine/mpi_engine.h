// The engine on MPI (written to MPI 3; used with Open MPI and MPICH): our algorithms over MPI's messages, in
// canonical order and with every type, and as algorithm "native" MPI's own collectives.
//
// "native" runs by MPI's non-blocking calls. Its ranks meet first, by one small message between each two, so
// that ranks which called different things are told and a timeout can name who is missing. It is taken when
// the call or LOCKSTEP_ALGORITHM asks for it.
//
// "blocking" is MPI as programs call it that know nothing else, for comparison: ranks do not meet first, so
// nothing is compared, and no timeout ends it. With Open MPI it takes about half of native's time.
//
// After a failure MPI_Finalize is left out, since it could wait for ever.
#pragma once

#include <memory>

#include "comm/call/engine.h"

namespace lockstep {

// The engine over all processes that mpirun (or srun) started. Initialises MPI unless the program has; then
// also finalises it at exit, unless an operation failed. Throws SystemError with MPI's message, or when MPI
// gives less than MPI_THREAD_SERIALIZED.
std::unique_ptr<Engine> make_mpi_engine();

// What it can do for ranks on `nodes`; `multiple`: MPI gives MPI_THREAD_MULTIPLE.
Capabilities mpi_capabilities(const std::vector<int>& nodes, bool multiple);

}  // namespace lockstep
