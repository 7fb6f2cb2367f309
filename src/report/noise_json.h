// The noise scale in summaries and events.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "lockstep/report/noise_scale.h"

namespace lockstep {

// What is infinite, or not known, is null there.
nlohmann::ordered_json to_json(const NoiseFigures& figures);
// Nothing of what is no such object.
std::optional<NoiseFigures> noise_from_json(const nlohmann::ordered_json& json);

}  // namespace lockstep
