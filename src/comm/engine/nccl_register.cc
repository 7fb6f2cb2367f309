// Linking lockstep_nccl adds its engine; see mpi_register.cc.
#include "comm/engine/nccl_engine.h"
#include "comm/engine/registry.h"
#include "lockstep/base/error.h"

extern "C" const bool lockstep_nccl_is_linked;
const bool lockstep_nccl_is_linked = lockstep::add_engine(
    {.profile = *lockstep::known_engine("nccl"),
     .can = [] { return lockstep::nccl_capabilities({}); },
     .make =
         [](const auto& /*who*/, const auto& /*knobs*/, std::shared_ptr<lockstep::Engine> carrier) {
           if (carrier == nullptr)
             throw lockstep::UsageError("the nccl engine needs an engine over which its ranks meet");
           return lockstep::make_nccl_engine(std::move(carrier));
         }});
