#include "train/read_state.h"

#include <fmt/format.h>

#include "base/json_text.h"
#include "lockstep/base/error.h"

namespace lockstep {

using Json = nlohmann::ordered_json;

Json parse_state(std::string_view text, const std::string& checkpoint) {
  if (nests_deeper(text))
    throw UsageError(fmt::format("{}: its state.json is nested deeper than {}", checkpoint, kMostJsonDepth));
  const Json state = Json::parse(text, nullptr, false);
  if (const Json format = state.is_object() ? state.value("format", Json()) : Json();
      !format.is_null() && format != kStateFormat)
    throw UsageError(fmt::format(
        "{}: its state.json has format {:.40}; accepted: {} (another version of lockstep wrote it)",
        checkpoint, format.dump(), kStateFormat));
  if (!state.is_object() || !state.contains("step") || !state["step"].is_number_integer() ||
      state["step"].get<std::int64_t>() < 0 || !state.contains("options") || !state["options"].is_object())
    throw UsageError(fmt::format("{}: its state.json is not that of a training run", checkpoint));
  return state;
}

Json read_state(const std::filesystem::path& checkpoint) {
  return parse_state(read_small_file((checkpoint / "state.json").string(), kMostJsonBytes).value_or(""),
                     checkpoint.string());
}

}  // namespace lockstep
