// Linking lockstep_gloo adds its engine; see mpi_register.cc.
#include "comm/engine/gloo_engine.h"
#include "comm/engine/registry.h"
#include "lockstep/base/error.h"

extern "C" const int lockstep_gloo_is_linked;
const int lockstep_gloo_is_linked = [] {
  lockstep::add_engine({.name = "gloo",
                        .can = [] { return lockstep::gloo_capabilities(); },
                        .finds_its_peers = false,
                        .make =
                            [](const lockstep::Group* world) {
                              if (world == nullptr)
                                throw lockstep::UsageError(
                                    "the gloo engine needs a group over which its ranks meet");
                              return lockstep::make_gloo_engine(*world);
                            }});
  return 1;
}();
