// Linking lockstep_mpi adds its engine: the target makes the linker ask for the symbol below, which brings
// this file, and with it the object that does it.
#include "comm/engine/mpi_engine.h"
#include "comm/engine/registry.h"

extern "C" const int lockstep_mpi_is_linked;
const int lockstep_mpi_is_linked = [] {
  lockstep::add_engine(
      {.name = "mpi",
       .can =
           [] {
             return lockstep::mpi_capabilities({0, 1}, true);
           },
       .finds_its_peers = true,
       .make = [](const std::shared_ptr<lockstep::Engine>&) { return lockstep::make_mpi_engine(); }});
  return 1;
}();
