// What a sweep over methods of compression found, for files and for people.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "report/batch_sweep.h"

namespace lockstep {

struct CompressSweepRow {
  std::string method;      // as --compress takes it
  BatchSweepRow run = {};  // the batch, and what came of it
  std::optional<double> wire_bytes_a_step =
      {};  // of all workers; nothing where no socket of ours carried them

  std::optional<double> wire_bytes() const;  // of all steps
  // Of the same batch without compression: how often less is sent.
  std::optional<double> times_less(const std::vector<CompressSweepRow>& rows) const;
};

// What all workers sent in a step, from a finished run's folder.
std::optional<double> read_wire_bytes(const std::filesystem::path& folder);

std::string compress_sweep_csv(const std::vector<CompressSweepRow>& rows);
// An SVG document: accuracy (loss, where there is none) against bytes and against time, one line a method
// through its batches.
std::string compress_sweep_plot(const std::vector<CompressSweepRow>& rows);
std::string compress_sweep_table(const std::vector<CompressSweepRow>& rows, bool colours);
nlohmann::ordered_json to_json(const CompressSweepRow& row);

}  // namespace lockstep
