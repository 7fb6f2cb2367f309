// Linking lockstep_cuda adds its engine; see mpi_register.cc.
#include "comm/engine/ipc_engine.h"
#include "comm/engine/registry.h"
#include "lockstep/base/error.h"

extern "C" const bool lockstep_ipc_is_linked;
const bool lockstep_ipc_is_linked = lockstep::add_engine(
    {.profile = *lockstep::known_engine("ipc"),
     .can = [] { return lockstep::ipc_capabilities({}); },
     .make =
         [](const auto& /*who*/, const auto& /*knobs*/, std::shared_ptr<lockstep::Engine> carrier) {
           if (carrier == nullptr)
             throw lockstep::UsageError("the ipc engine needs an engine over which its ranks meet");
           return lockstep::make_ipc_engine(std::move(carrier));
         }});
