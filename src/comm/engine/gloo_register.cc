// Linking lockstep_gloo adds its engine; see mpi_register.cc.
#include "comm/engine/gloo_engine.h"
#include "comm/engine/registry.h"
#include "lockstep/base/error.h"

extern "C" const bool lockstep_gloo_is_linked;
const bool lockstep_gloo_is_linked = lockstep::add_engine(
    {.profile = *lockstep::known_engine("gloo"),
     .can = [] { return lockstep::gloo_capabilities(); },
     .make =
         [](const auto& /*who*/, const auto& /*knobs*/, std::shared_ptr<lockstep::Engine> carrier) {
           if (carrier == nullptr)
             throw lockstep::UsageError("the gloo engine needs an engine over which its ranks meet");
           return lockstep::make_gloo_engine(std::move(carrier));
         },
     .forced = {"ring", "bcube", "native", "canonical"}});
