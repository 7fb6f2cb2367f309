// The page of a run, made from the files of its folder: self-contained HTML, no network, light and dark.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/timeline.h"

namespace lockstep {

// Reads config.json, steps.csv, epochs.csv, evaluations.csv, latency.csv and summary.json as far as they are
// there. `timeline` shows one step; `loss_floor` is what the data allows, where it is known.
std::string render_page(const std::filesystem::path& folder, const std::vector<TimelineRow>& timeline,
                        std::optional<double> loss_floor = {});

}  // namespace lockstep
