#include "report/noise_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Json to_json(const NoiseFigures& f) {
  const auto or_null = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  return {
      {"scale", or_null(f.scale)}, {"low", or_null(f.low)}, {"high", or_null(f.high)}, {"steps", f.steps}};
}

std::optional<NoiseFigures> noise_from_json(const Json& json) {
  if (!json.is_object() || !json.value("steps", Json()).is_number_integer()) return std::nullopt;
  const auto number = [&](const char* key, double otherwise) {
    const Json value = json.value(key, Json());
    return value.is_number() ? value.get<double>() : otherwise;
  };
  const double low = number("low", NAN);
  return NoiseFigures{.scale = number("scale", INFINITY),
                      .low = low,
                      .high = number("high", std::isnan(low) ? NAN : INFINITY),
                      .steps = json.at("steps").get<std::int64_t>()};
}

}  // namespace lockstep
