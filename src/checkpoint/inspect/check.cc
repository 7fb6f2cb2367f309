#include "checkpoint/inspect/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "checkpoint/file.h"
#include "checkpoint/inspect/content.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors_file.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "report/printable.h"
#include "report/table.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using OnRead = std::function<void(std::uint64_t)>;

// What the header of a safetensors file says of it.
struct HeaderFinding {
  std::string fault;  // empty: it can be read, and fits the file
  std::size_t tensors = 0;
};

HeaderFinding look_at_header(const fs::path& file) try {
  InputFile input(file);
  return {.fault = "", .tensors = read_header(input).tensors.size()};
} catch (const UsageError& wrong) {
  return {.fault = wrong.what()};
}

// The fault of a file whose size is right; empty: none.
std::string content_fault(const fs::path& file, const Manifest& manifest, const OnRead& on_read) {
  const std::string said = find_fault(file, manifest, Depth::whole, on_read);
  // What lies in runs of tensors has hashes of its own, which say where it was altered.
  if (!holds_tensors(file) || manifest.files.at(file.filename().string()).head != 0) return said;
  const HeaderFinding header = look_at_header(file);
  if (!header.fault.empty())
    return said.empty() ? "is as it was written, but " + header.fault : said + "; " + header.fault;
  // The manifest has one hash a file.
  return said.empty() ? said
                      : fmt::format("{}; its header still fits, which of its {} changed can't be told", said,
                                    counted(static_cast<std::int64_t>(header.tensors), "tensor"));
}

bool is_there(const fs::path& file) {
  std::error_code unknown;
  return fs::symlink_status(file, unknown).type() != fs::file_type::not_found;
}

std::string file_fault(const fs::path& file, const Manifest& manifest, const OnRead& on_read) {
  if (!is_there(file)) return "is not there";
  const std::uint64_t expected = manifest.files.at(file.filename().string()).bytes;
  const std::uint64_t bytes = InputFile(file).bytes();
  if (bytes != expected) return fmt::format("has {} bytes instead of {}", bytes, expected);
  return content_fault(file, manifest, on_read);
}

// What `look` finds wrong with a file, or what kept it from looking, goes into the report.
void note(CheckReport& report, const std::string& file, const std::function<std::string()>& look) {
  const auto add = [&](Condition condition, const std::string& what) {
    report.condition = std::max(report.condition, condition);
    report.faults.push_back({.file = file, .what = what});
  };
  try {
    if (const std::string fault = look(); !fault.empty()) add(Condition::damaged, fault);
  } catch (const RefusedFile& refused) {
    add(Condition::unreadable, refused.what());
  } catch (const Error& failure) {
    add(Condition::damaged, failure.what());
  }
}

}  // namespace

const char* to_string(Condition condition) {
  switch (condition) {
    case Condition::whole: return "whole";
    case Condition::unreadable: return "unreadable";
    case Condition::damaged: return "damaged";
  }
  return "?";
}

std::optional<CheckReport> check_checkpoint(const ListedCheckpoint& listed, const OnRead& on_read) {
  const auto before = folder_number(listed.folder);
  CheckReport report{.folder = listed.folder, .step = listed.step};
  Manifest manifest;
  note(report, kManifestName, [&] {
    if (!is_there(listed.folder / kManifestName)) return "is not there";
    manifest = read_manifest(listed.folder);
    return "";
  });
  for (const auto& one : manifest.files) {
    ++report.files;
    report.bytes += one.second.bytes;
    note(report, one.first, [&] { return file_fault(listed.folder / one.first, manifest, on_read); });
  }
  if (report.condition != Condition::whole && was_removed(listed.folder, before)) return std::nullopt;
  return report;
}

nlohmann::ordered_json to_json(const CheckReport& report) {
  nlohmann::ordered_json faults = nlohmann::ordered_json::array();
  for (const FileFault& fault : report.faults) faults.push_back({{"file", fault.file}, {"what", fault.what}});
  return {{"checkpoint", report.folder.string()},
          {"step", report.step ? nlohmann::ordered_json(*report.step) : nlohmann::ordered_json()},
          {"condition", to_string(report.condition)},
          {"files", report.files},
          {"bytes", report.bytes},
          {"faults", faults}};
}

std::string describe(const CheckReport& report) {
  std::string found;
  for (const FileFault& fault : report.faults)
    found += fmt::format("{}{} {}", found.empty() ? "" : "; ", fault.file, fault.what);
  if (found.empty())
    found = counted(static_cast<std::int64_t>(report.files), "file") + ", " + format_bytes(report.bytes);
  return one_line(printable(fmt::format("{}  {:<7}  {}", report.folder.filename().string(),
                                        to_string(report.condition), found))) +
         "\n";
}

}  // namespace lockstep
