// What a sweep found, for files and for people.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep {

struct SweepRow {
  std::string value;  // of the option, as written
  double samples_per_s = 0;
  double step_ms = 0;  // median
  double comm_fraction = 0;
  double overlap_fraction = 0;
  double final_loss = 0;
  std::string params_sha256 = {};
};

// Of several runs of one value, the one with the median throughput (the lower of two).
SweepRow median_row(std::vector<SweepRow> runs);

std::string sweep_csv(const std::string& option, const std::vector<SweepRow>& rows);
// An SVG document: throughput above, communication share below.
std::string sweep_plot(const std::string& option, const std::vector<SweepRow>& rows);
std::string sweep_table(const std::string& option, const std::vector<SweepRow>& rows, bool colours);
nlohmann::ordered_json sweep_json(const std::string& option, const SweepRow& row);

}  // namespace lockstep
