// One measured line: a variant (engine, algorithm, memory) at one size.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct BenchRow {
  std::string op;         // the collective
  std::string engine;     // "shm", "mpi", "gloo"
  std::string algorithm;  // "auto": the cost table's choice
  std::string memory;     // "comm" or "private"
  std::string dtype;
  std::string reduction;  // "sum", …; empty where nothing is reduced
  int workers = 0;
  std::uint64_t bytes = 0;  // as nccl-tests counts them
  int iterations = 0;       // samples
  // Of the samples, each the slowest rank's time: median, extremes, quartiles. Microseconds.
  double us = 0, us_min = 0, us_p25 = 0, us_p75 = 0, us_max = 0;
  double algbw_gbs = 0, busbw_gbs = 0;  // 10⁹ bytes a second
  // The time in which memory could deliver the bytes that must move; none for barrier.
  std::optional<double> floor_us, floor_ratio;
  // Time over that of the faster of mpi and gloo at this size; none when neither was measured.
  std::optional<double> peer_ratio;
  bool checked = false;  // results were right before and after the timing

  // What one line of the plot and one colour of the table stands for: "shm auto, comm memory".
  std::string variant() const;
  bool is_peer() const { return engine == "mpi" || engine == "gloo"; }
};

// Fills peer_ratio in rows of one size.
void fill_peer_ratio(std::vector<BenchRow>& rows);

void to_json(nlohmann::ordered_json& json, const BenchRow& row);
void from_json(const nlohmann::ordered_json& json, BenchRow& row);

}  // namespace lockstep
