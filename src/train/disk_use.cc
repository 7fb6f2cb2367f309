#include "train/disk_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "lockstep/base/bytes.h"
#include "offload/scratch_file.h"

namespace lockstep {

DiskUse disk_use(const TrainOptimizer& optimizer, const Group& world) {
  DiskUse use{.own = optimizer.offload().value_or(OffloadFigures()), .bytes = {}};
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

std::string describe(const DiskUse& use) {
  const auto bytes = std::accumulate(use.bytes.begin(), use.bytes.end(), std::int64_t{0});
  if (bytes == 0) return "offload: the optimizer keeps no state, so nothing is on disk";
  if (use.own.folder.empty())
    return fmt::format(
        "offload: {} of optimizer state in the host's memory, updated there; {:.2f} GB/s from the GPU, "
        "{:.2f} GB/s "
        "to it a worker: about {:.3g} ms a step more",
        format_bytes(static_cast<std::uint64_t>(bytes)), use.read_rate / 1e9, use.write_rate / 1e9,
        use.predicted_ms);
  return fmt::format(
      "offload: {} of optimizer state on disk in {} ({}{}), {:.2f} GB/s read, {:.2f} GB/s write a worker: "
      "about {:.3g} ms a step more",
      format_bytes(static_cast<std::uint64_t>(bytes)), use.own.folder.string(), use.own.io,
      path_text(use.own.path), use.read_rate / 1e9, use.write_rate / 1e9, use.predicted_ms);
}

nlohmann::ordered_json to_json(const DiskUse& use) {
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

}  // namespace lockstep
