// Adds the engine over TCP: linking lockstep_comm asks for the symbol below (engine/mpi_register.cc).
#include "comm/engine/registry.h"
#include "comm/world/tcp_world.h"

extern "C" const bool lockstep_tcp_is_linked;
const bool lockstep_tcp_is_linked =
    lockstep::add_engine({.profile = *lockstep::known_engine("tcp"),
                          .can =
                              [] {
                                return lockstep::channel_capabilities({0, 1});
                              },
                          .make = [](const lockstep::Membership& who, const lockstep::Knobs& knobs,
                                     const auto& /*carrier*/) { return lockstep::tcp_world(who, knobs); }});
