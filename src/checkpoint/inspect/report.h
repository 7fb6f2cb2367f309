// What `lockstep checkpoint` prints of checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/inspect/export.h"

namespace lockstep {

enum class ReportForm : std::uint8_t {
  plain,     // for people
  coloured,  // for people at a terminal
  json,      // one object a line
};
// Takes whole lines, each as soon as it is known.
using ReportLines = std::function<void(const std::string&)>;

// Which checkpoints there are at `path` (list_checkpoints_at), and what the newest holds; as JSON one line
// each, of which the last has the content. Throws what these throw; a newest one that can't be read is thrown
// behind the lines of the others.
void report_content(const std::filesystem::path& path, ReportForm form, const ReportLines& print);

// One line each, whole or not, with progress on a terminal's standard error. Then throws SystemError when one
// is not whole.
void report_condition(const std::filesystem::path& path, ReportForm form, const ReportLines& print);

// Exports, with progress likewise, and prints one line. Throws what export_weights throws.
void report_export(const std::filesystem::path& from, const ExportOptions& options, ReportForm form,
                   const ReportLines& print);

}  // namespace lockstep
