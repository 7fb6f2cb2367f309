#include "cli/tune_engines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/engine/offers.h"
#include "comm/engine/registry.h"
#include "lockstep/base/bytes.h"

namespace lockstep::cli {
namespace {

using Words = std::vector<std::string>;

Words collectives_of(const Offer& offer) {
  Words words;
  for (int what = 0; what < kCollectives; ++what)
    if (offer.collectives.has(static_cast<Collective>(what)))
      words.emplace_back(to_string(static_cast<Collective>(what)));
  return words;
}

// The types of each set of operations that it lacks; a bit operation of floats nobody has.
std::map<Words, Words> lacks_of(const Offer& offer) {
  std::map<Words, Words> types;
  for (const DType dtype : kAllDTypes) {
    Words ops;
    for (const ReduceOp op : kAllReduceOps) {
      if (!supports(op, dtype)) continue;
      for (const Lack& lack : offer.lacks)
        if (lack.ops.has(op) && lack.dtypes.has(dtype)) {
          ops.emplace_back(to_string(op));
          break;
        }
    }
    if (!ops.empty()) types[ops].emplace_back(to_string(dtype));
  }
  return types;
}

bool sums(const Offer& offer) {
  for (int what = 0; what < kCollectives; ++what)
    if (offer.collectives.has(static_cast<Collective>(what)) && reduces(static_cast<Collective>(what)))
      return true;
  return false;
}

std::string line_of(const Offer& offer) {
  std::string line = fmt::format("  {:<17} {}", offer.name, fmt::join(collectives_of(offer), ", "));
  if (sums(offer) && !offer.canonical) line += "; sums in an order of its own";
  if (offer.at_most_bytes != ~std::size_t{0})
    line += fmt::format("; at most {} a rank", format_bytes(offer.at_most_bytes));
  if (offer.at_most_count != ~std::size_t{0})
    line += fmt::format("; at most {} elements a rank", offer.at_most_count);
  if (!offer.learns_divisor) line += "; avg needs the divisor from every rank";
  if (sums(offer))
    for (const auto& [ops, types] : lacks_of(offer))
      line += fmt::format("; no {} of {}", fmt::join(ops, ", "), fmt::join(types, ", "));
  return line;
}

nlohmann::ordered_json json_of(const Offer& offer) {
  nlohmann::ordered_json row = {{"name", offer.name}, {"collectives", collectives_of(offer)}};
  if (sums(offer)) row["canonical"] = offer.canonical;
  if (offer.at_most_bytes != ~std::size_t{0}) row["at_most_bytes"] = offer.at_most_bytes;
  if (offer.at_most_count != ~std::size_t{0}) row["at_most_count"] = offer.at_most_count;
  row["learns_divisor"] = offer.learns_divisor;
  row["lacks"] = nlohmann::ordered_json::array();
  if (sums(offer))
    for (const auto& [ops, types] : lacks_of(offer))
      row["lacks"].push_back({{"ops", ops}, {"dtypes", types}});
  return row;
}

// Those words of LOCKSTEP_ENGINE that name two engines.
Words compositions() {
  Words words = engine_words(engine_profiles());
  std::erase_if(words, [](const std::string& word) { return word.find('+') == std::string::npos; });
  return words;
}

Words devices_of(const EngineView& engine) {
  Words names;
  for (std::size_t k = 0; k < kDeviceKinds; ++k)
    if (const auto kind = static_cast<Device::Kind>(k); engine.can.devices.has(kind))
      names.emplace_back(to_string(kind));
  return names;
}

void print_json(const std::vector<EngineView>& engines) {
  for (const EngineView& engine : engines) {
    nlohmann::ordered_json row = {{"engine", engine.profile.name}, {"about", engine.profile.about}};
    row["here"] = engine.missing.empty();
    if (engine.missing.empty()) {
      row["several_machines"] = engine.profile.several_machines;
      row["inside_nodes"] = engine.profile.inside;
      row["devices"] = devices_of(engine);
      row["reachable_memory"] = engine.can.reachable_memory;
      row["algorithms"] = nlohmann::ordered_json::array();
      for (const Offer& offer : engine.can.offers) row["algorithms"].push_back(json_of(offer));
    } else {
      row["missing"] = engine.missing;
    }
    std::printf("%s\n", row.dump().c_str());
  }
  for (const std::string& word : compositions()) {
    nlohmann::ordered_json row = {{"engine", word}, {"inside", word.substr(0, word.find('+'))}};
    row["across"] = word.substr(word.find('+') + 1);
    row["algorithms"] = nlohmann::ordered_json::array();
    for (const Offer& offer : composed_offers({0, 0, 1, 1})) row["algorithms"].push_back(json_of(offer));
    std::printf("%s\n", row.dump().c_str());
  }
}

void print_text(const std::vector<EngineView>& engines) {
  for (const EngineView& engine : engines) {
    std::printf("%s: %s\n", engine.profile.name, engine.profile.about);
    if (!engine.missing.empty()) {
      std::printf("  not in this build: %s\n\n", engine.missing.c_str());
      continue;
    }
    std::printf("  every element type and operation, but where a line says otherwise; memory on %s%s\n",
                fmt::format("{}", fmt::join(devices_of(engine), ", ")).c_str(),
                engine.can.reachable_memory ? ", and comm memory that all workers reach" : "");
    for (const Offer& offer : engine.can.offers) std::printf("%s\n", line_of(offer).c_str());
    std::printf("\n");
  }
  std::printf(
      "%s\n",
      fmt::format("Inside a machine and across machines: {}", fmt::join(compositions(), ", ")).c_str());
  for (const Offer& offer : composed_offers({0, 0, 1, 1}))
    std::printf("%s; and what the second of them has\n", line_of(offer).c_str());
}

}  // namespace

int show_engines(bool json) {
  const std::vector<EngineView> engines = all_engines();
  json ? print_json(engines) : print_text(engines);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace lockstep::cli
