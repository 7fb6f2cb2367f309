// A checkpoint's weights as one safetensors file, for other programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/output_file.h"

namespace lockstep {

enum class ExportedWeights : std::uint8_t {
  model,   // as the model has them
  master,  // of f32 where the optimizer keeps a parameter in f32 of which the model has 16 bits; else the
           // model's
};

struct ExportOptions {
  std::filesystem::path out;
  ExportedWeights weights = ExportedWeights::model;
  Existing existing = Existing::refuse;
};

struct ExportReport {
  std::filesystem::path checkpoint;
  std::filesystem::path out;
  std::int64_t step = 0;
  std::size_t tensors = 0;
  std::size_t masters = 0;  // of them
  std::uint64_t bytes = 0;  // of the file
};

// Parameters and buffers under the model's names, from the checkpoint that `--resume from` would take: its
// hashes are checked first. A reader of `out` sees the old file or the whole new one. Tensors are copied
// piece by piece. `on_written` is told of the file's bytes, and of all of them, as they are written.
//
// Throws UsageError when `out` is there and may not be replaced, lies in a checkpoint or can't be a file,
// when there is no checkpoint, when it has no weights, or none of f32 though they are asked for; SystemError
// when it is damaged or `out` can't be written.
ExportReport export_weights(
    const std::filesystem::path& from, const ExportOptions& options,
    const std::function<void(std::uint64_t bytes, std::uint64_t total)>& on_written = {});

nlohmann::ordered_json to_json(const ExportReport& report);
std::string describe(const ExportReport& report);  // one line, with its end

}  // namespace lockstep
