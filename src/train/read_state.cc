// state.json of a checkpoint.
#include <fmt/format.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "train/run_plan.h"

namespace lockstep {

nlohmann::ordered_json read_state(const std::filesystem::path& checkpoint) {
  using Json = nlohmann::ordered_json;
  std::ifstream in(checkpoint / "state.json");
  const Json state = in ? Json::parse(in, nullptr, false) : Json();
  if (const Json format = state.is_object() ? state.value("format", Json()) : Json();
      !format.is_null() && format != kStateFormat)
    throw UsageError(
        fmt::format("{}: its state.json has format {}; accepted: {} (another version of lockstep wrote it)",
                    checkpoint.string(), format.dump(), kStateFormat));
  if (!state.is_object() || !state.contains("step") || !state["step"].is_number_integer() ||
      state["step"].get<std::int64_t>() < 0 || !state.contains("options") || !state["options"].is_object())
    throw UsageError(fmt::format("{}: its state.json is not that of a training run", checkpoint.string()));
  return state;
}

}  // namespace lockstep
