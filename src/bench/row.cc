#include "bench/row.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

nlohmann::ordered_json optional(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

std::optional<double> optional_at(const nlohmann::ordered_json& json, const char* key) {
  const auto& value = json.at(key);
  return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
}

}  // namespace

std::string BenchRow::variant() const { return engine + " " + algorithm + ", " + memory + " memory"; }

void fill_peer_ratio(std::vector<BenchRow>& rows) {
  std::optional<double> peer;
  for (const auto& row : rows)
    if (row.is_peer() && row.checked) peer = std::min(peer.value_or(row.us), row.us);
  for (auto& row : rows)
    if (peer && *peer > 0) row.peer_ratio = row.us / *peer;
}

void to_json(nlohmann::ordered_json& json, const BenchRow& row) {
  json = {{"op", row.op},
          {"engine", row.engine},
          {"algorithm", row.algorithm},
          {"workers", row.workers},
          {"bytes", row.bytes},
          {"memory", row.memory},
          {"dtype", row.dtype},
          {"reduction", row.reduction},
          {"us", row.us},
          {"us_min", row.us_min},
          {"us_p25", row.us_p25},
          {"us_p75", row.us_p75},
          {"us_max", row.us_max},
          {"iterations", row.iterations},
          {"algbw_gbs", row.algbw_gbs},
          {"busbw_gbs", row.busbw_gbs},
          {"floor_us", optional(row.floor_us)},
          {"floor_ratio", optional(row.floor_ratio)},
          {"peer_ratio", optional(row.peer_ratio)},
          {"checked", row.checked}};
}

void from_json(const nlohmann::ordered_json& json, BenchRow& row) {
  json.at("op").get_to(row.op);
  json.at("engine").get_to(row.engine);
  json.at("algorithm").get_to(row.algorithm);
  json.at("workers").get_to(row.workers);
  json.at("bytes").get_to(row.bytes);
  json.at("memory").get_to(row.memory);
  json.at("dtype").get_to(row.dtype);
  json.at("reduction").get_to(row.reduction);
  json.at("us").get_to(row.us);
  json.at("us_min").get_to(row.us_min);
  json.at("us_p25").get_to(row.us_p25);
  json.at("us_p75").get_to(row.us_p75);
  json.at("us_max").get_to(row.us_max);
  json.at("iterations").get_to(row.iterations);
  json.at("algbw_gbs").get_to(row.algbw_gbs);
  json.at("busbw_gbs").get_to(row.busbw_gbs);
  row.floor_us = optional_at(json, "floor_us");
  row.floor_ratio = optional_at(json, "floor_ratio");
  row.peer_ratio = optional_at(json, "peer_ratio");
  json.at("checked").get_to(row.checked);
}

}  // namespace lockstep
