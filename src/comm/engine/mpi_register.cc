// Linking lockstep_mpi adds its engine: the target makes the linker ask for the symbol below, which brings
// this file, and with it the object that does it.
#include "comm/engine/mpi_engine.h"
#include "comm/engine/registry.h"

extern "C" const bool lockstep_mpi_is_linked;
const bool lockstep_mpi_is_linked =
    lockstep::add_engine({.profile = *lockstep::known_engine("mpi"),
                          .can =
                              [] {
                                return lockstep::mpi_capabilities({0, 1}, true);
                              },
                          .make = [](const auto& /*who*/, const auto& /*knobs*/,
                                     const auto& /*carrier*/) { return lockstep::make_mpi_engine(); },
                          .forced = {"native"}});
