#include "checkpoint/inspect/report.h"

#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/file.h"
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

struct NewestContent {
  std::vector<ListedCheckpoint> listed;
  std::function<CheckpointContent()> take;  // throws what reading it threw
};

// What is at `path`, and what the newest of it holds. The run that writes it may go on and remove it: then
// what is there now.
NewestContent read_newest(const std::filesystem::path& path) {
  while (true) {
    std::vector<ListedCheckpoint> listed = list_checkpoints_at(path);
    const std::filesystem::path newest = listed.back().folder;
    const auto before = folder_number(newest);
    try {
      CheckpointContent content = read_content(newest);
      return {std::move(listed), [content = std::move(content)] { return content; }};
    } catch (const Error&) {
      if (was_removed(newest, before)) continue;
      return {std::move(listed),
              [why = std::current_exception()]() -> CheckpointContent { std::rethrow_exception(why); }};
    }
  }
}

}  // namespace

void report_content(const std::filesystem::path& path, ReportForm form, const ReportLines& print) {
  const auto [listed, read] = read_newest(path);
  if (form != ReportForm::json) {
    print(describe(listed, form == ReportForm::coloured) + "\n");
    print(describe(read(), form == ReportForm::coloured));
    return;
  }
  for (std::size_t i = 0; i + 1 < listed.size(); ++i) print(json_line(to_json(listed[i])));
  nlohmann::ordered_json last = to_json(listed.back());
  last["content"] = to_json(read());
  print(json_line(last));
}

void report_condition(const std::filesystem::path& path, ReportForm form, const ReportLines& print) {
  std::int64_t seen = 0, wrong = 0;
  while (seen == 0) {  // where all were removed meanwhile, nothing is known of those that are there now
    const std::vector<ListedCheckpoint> listed = list_checkpoints_at(path);
    ByteProgress progress("verifying", total_bytes(listed));
    for (const ListedCheckpoint& one : listed) {
      const auto report = check_checkpoint(one, [&](std::uint64_t bytes) { progress.add(bytes); });
      if (!report) continue;
      progress.clear();
      print(form == ReportForm::json ? json_line(to_json(*report)) : describe(*report));
      ++seen;
      if (report->condition != Condition::whole) ++wrong;
    }
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
