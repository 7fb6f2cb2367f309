#include "checkpoint/inspect/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/inspect/check.h"
#include "checkpoint/inspect/content.h"
#include "lockstep/base/error.h"
#include "report/byte_progress.h"
#include "report/table.h"

namespace lockstep {
namespace {

// Names of files need not be UTF-8.
std::string json_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

void report_content(const std::filesystem::path& path, ReportForm form, const ReportLines& print) {
  const std::vector<ListedCheckpoint> listed = list_checkpoints_at(path);
  const ListedCheckpoint& newest = listed.back();
  if (form != ReportForm::json) {
    print(describe(listed, form == ReportForm::coloured) + "\n");
    print(describe(read_content(newest.folder), form == ReportForm::coloured));
    return;
  }
  for (std::size_t i = 0; i + 1 < listed.size(); ++i) print(json_line(to_json(listed[i])));
  nlohmann::ordered_json last = to_json(newest);
  last["content"] = to_json(read_content(newest.folder));
  print(json_line(last));
}

void report_condition(const std::filesystem::path& path, ReportForm form, const ReportLines& print) {
  const std::vector<ListedCheckpoint> listed = list_checkpoints_at(path);
  ByteProgress progress("verifying", total_bytes(listed));
  std::int64_t seen = 0, wrong = 0;
  for (const ListedCheckpoint& one : listed) {
    const auto report = check_checkpoint(one, [&](std::uint64_t bytes) { progress.add(bytes); });
    if (!report) continue;
    progress.clear();
    print(form == ReportForm::json ? json_line(to_json(*report)) : describe(*report));
    ++seen;
    if (report->condition != Condition::whole) ++wrong;
  }
  if (wrong > 0)
    throw SystemError(
        fmt::format("{} of {} {} not whole", wrong, counted(seen, "checkpoint"), wrong == 1 ? "is" : "are"));
}

void report_export(const std::filesystem::path& from, const ExportOptions& options, ReportForm form,
                   const ReportLines& print) {
  std::optional<ByteProgress> progress;
  const ExportReport report = export_weights(from, options, [&](std::uint64_t bytes, std::uint64_t total) {
    if (!progress) progress.emplace("exporting", total);
    progress->add(bytes);
  });
  progress.reset();
  print(form == ReportForm::json ? json_line(to_json(report)) : describe(report));
}

}  // namespace lockstep
