#include "train/disk_use.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/option_name.h"
#include "lockstep/base/bytes.h"
#include "lockstep/checkpoint/leader.h"
#include "offload/scratch_file.h"

namespace lockstep {

namespace {

DiskPart part_of_all(const std::optional<OffloadFigures>& own, const Group& world) {
  DiskPart use{.own = own.value_or(OffloadFigures()), .bytes = {}};
  use.bytes = world.all_gather(static_cast<std::int64_t>(use.own.bytes));
  const std::vector<double> mine = {use.own.read_rate, use.own.write_rate, use.own.predicted_ms,
                                    use.own.measured_ms.value_or(0), use.own.measured_ms ? 1.0 : 0.0};
  std::vector<double> all(mine.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(mine, all);
  double slowest_read = INFINITY, slowest_write = INFINITY;
  for (std::size_t r = 0; r < use.bytes.size(); ++r) {
    const double* const figures = all.data() + r * mine.size();
    if (use.bytes[r] == 0) continue;  // nothing was measured
    slowest_read = std::min(slowest_read, figures[0]);
    slowest_write = std::min(slowest_write, figures[1]);
    use.predicted_ms = std::max(use.predicted_ms, figures[2]);
    if (figures[4] != 0) use.measured_ms = std::max(use.measured_ms.value_or(0), figures[3]);
  }
  use.read_rate = std::isfinite(slowest_read) ? slowest_read : 0;
  use.write_rate = std::isfinite(slowest_write) ? slowest_write : 0;
  return use;
}

std::uint64_t sum_of(const DiskPart& part) {
  return static_cast<std::uint64_t>(std::accumulate(part.bytes.begin(), part.bytes.end(), std::int64_t{0}));
}

nlohmann::ordered_json json_of(const DiskPart& use) {
  return {{"folder", use.own.folder.empty() ? nlohmann::ordered_json()
                                            : nlohmann::ordered_json(use.own.folder.string())},
          {"bytes", use.bytes},
          {"staging_bytes", use.own.staging_bytes},
          {"host_bytes", use.own.host_bytes},
          {"io", use.own.io},
          {"direct", use.own.path == OffloadPath::direct},
          {"in_memory", use.own.path == OffloadPath::memory},
          {"read_gbs", use.read_rate / 1e9},
          {"write_gbs", use.write_rate / 1e9},
          {"predicted_ms", use.predicted_ms},
          {"measured_ms", use.measured_ms ? nlohmann::ordered_json(*use.measured_ms) : nullptr}};
}

}  // namespace

// Before anything is made there: what is missing is then said of the option.
void check_folders(const TrainerOptions& o, const Group& world) {
  const std::filesystem::path& state = o.offload.folder;
  const std::filesystem::path& params = o.parallel.offload_params.folder;
  if (state.empty() && params.empty()) return;
  const bool flags = option_text("offload").starts_with("--");  // one for both
  run_on_all(world, "looking for the folder of what is on disk", [&] {
    if (!state.empty()) expect_folder(option_text("offload", state.string()), state);
    if (!params.empty())
      expect_folder(option_text(flags ? "offload" : "parallel.offload_params", params.string()), params);
  });
}

DiskUse disk_use(const TrainOptimizer& optimizer, const Strategy& strategy, int lanes) {
  const Group& world = strategy.group();
  // On all workers or on none, which the options say.
  const auto state = optimizer.offload(), params = strategy.offload(lanes);
  DiskUse use;
  if (state) use.state = part_of_all(state, world);
  if (params) use.params = part_of_all(params, world);
  return use;
}

std::string describe(const DiskUse& use) {
  std::vector<std::string> what;
  const DiskPart* first = nullptr;
  double predicted_ms = 0;
  for (const auto& [part, name] :
       {std::pair(&use.state, "optimizer state"), std::pair(&use.params, "parameters")}) {
    if (!*part || sum_of(**part) == 0) continue;
    if (first == nullptr) first = &**part;
    what.push_back(fmt::format("{} of {}", format_bytes(sum_of(**part)), name));
    predicted_ms += (*part)->predicted_ms;
  }
  if (first == nullptr) return "offload: the optimizer keeps no state, so nothing is on disk";
  if (first->own.folder.empty())
    return fmt::format(
        "offload: {} in the host's memory, updated there; {:.2f} GB/s from the GPU, {:.2f} GB/s to it a "
        "worker: about {:.3g} ms a step more",
        fmt::join(what, " and "), first->read_rate / 1e9, first->write_rate / 1e9, predicted_ms);
  return fmt::format(
      "offload: {} on disk in {} ({}{}), {:.2f} GB/s read, {:.2f} GB/s write a worker: "
      "about {:.3g} ms a step more",
      fmt::join(what, " and "), first->own.folder.string(), first->own.io, path_text(first->own.path),
      first->read_rate / 1e9, first->write_rate / 1e9, predicted_ms);
}

nlohmann::ordered_json to_json(const DiskUse& use) {
  nlohmann::ordered_json json = use.state ? json_of(*use.state) : nlohmann::ordered_json::object();
  if (use.params) json["params"] = json_of(*use.params);
  return json;
}

}  // namespace lockstep
