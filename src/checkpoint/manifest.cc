#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/json_text.h"
#include "checkpoint/file.h"
#include "checkpoint/step_name.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/sha256.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

// A file of this folder and of no other.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifestName &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

bool has_runs(const Manifest& manifest) {
  return !manifest.sets.empty() ||
         std::ranges::any_of(manifest.files, [](const auto& one) { return one.second.head != 0; });
}

nlohmann::json to_json(const Manifest& manifest) {
  nlohmann::json files = nlohmann::json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
    if (file.head != 0) files[name]["head"] = file.head;
  }
  nlohmann::json json = {{"format", has_runs(manifest) ? 2 : 1}, {"step", manifest.step}, {"files", files}};
  if (has_runs(manifest)) json["tensors"] = to_json(manifest.sets);
  return json;
}

// The runs in a file lie one behind the other, from its head to its end.
void check_files(const Manifest& manifest) {
  std::map<std::string, std::map<std::uint64_t, std::uint64_t>> runs;  // begin → end
  for (const auto& [set, content] : manifest.sets)
    for (const auto& [name, tensor] : content.tensors)
      for (const StoredRun& run : tensor.runs) {
        const auto file = manifest.files.find(run.file);
        if (file == manifest.files.end() || file->second.head == 0 || run.at > file->second.bytes ||
            tensor.bytes_of(run) > file->second.bytes - run.at ||
            !runs[run.file].emplace(run.at, run.at + tensor.bytes_of(run)).second)
          throw UsageError("has a run of tensor " + show_name(name) + " where no file has room for it");
      }
  for (const auto& [name, file] : manifest.files) {
    if (file.head == 0) continue;
    std::uint64_t next = file.head;
    for (const auto& [begin, end] : runs[name])
      if (begin != std::exchange(next, end))
        throw UsageError("has bytes of " + show_name(name) + " in no run, or in two");
    if (next != file.bytes) throw UsageError("has bytes of " + show_name(name) + " in no run");
  }
}

Manifest parse(std::string_view text, bool whole) {
  Manifest manifest;
  try {
    if (nests_deeper(text)) throw UsageError(fmt::format("is nested deeper than {}", kMostJsonDepth));
    const auto json = nlohmann::json::parse(text.begin(), text.end());
    if (json.at("format") != 1 && json.at("format") != 2) {
      throw UsageError(fmt::format("has format {:.40}; accepted: 1, 2", json.at("format").dump()));
    }
    manifest.step = whole_number<std::int64_t>(json.at("step"));
    for (const auto& [name, file] : json.at("files").items()) {
      if (!is_plain_name(name)) throw UsageError("names a file outside of the checkpoint");
      manifest.files[name] = {.bytes = whole_number<std::uint64_t>(file.at("bytes")),
                              .sha256 = file.at("sha256").get<std::string>()};
      if (file.contains("head")) manifest.files[name].head = whole_number<std::uint64_t>(file.at("head"));
    }
    if (json.contains("tensors")) manifest.sets = parse_sets(json.at("tensors"));
    if (compose_manifest(manifest) == text) {
      check_files(manifest);
      if (whole) check_cover(manifest.sets);
      return manifest;
    }
  } catch (const nlohmann::json::exception&) {
    throw UsageError("is cut off or altered (no manifest can be read from it)");
  }
  throw UsageError("was altered (its own SHA-256 or its form does not fit)");
}

}  // namespace

std::string compose_manifest(const Manifest& manifest) {
  nlohmann::json json = to_json(manifest);
  json["sha256"] = sha256_text(json.dump());
  return json.dump(1) + "\n";
}

Manifest parse_manifest(std::string_view text) { return parse(text, true); }

Manifest merge_parts(std::span<const std::string> parts) {
  Manifest manifest;
  for (const std::string& text : parts) {
    const Manifest part = parse(text, false);
    for (const auto& [name, file] : part.files)
      if (!manifest.files.emplace(name, file).second)
        throw UsageError("has the file " + show_name(name) + " twice");
    merge_sets(manifest.sets, part.sets);
  }
  check_cover(manifest.sets);
  return manifest;
}

Manifest describe_folder(const std::filesystem::path& folder, std::int64_t step, const Manifest& parts) {
  Manifest manifest{.step = step, .files = parts.files, .sets = parts.sets};
  std::size_t seen = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name == kManifestName || !std::filesystem::is_regular_file(at->symlink_status())) {
      throw UsageError(fmt::format("{} can't be part of a checkpoint; accepted: plain files not called {}",
                                   at->path().string(), kManifestName));
    }
    const std::uint64_t bytes = InputFile(at->path()).bytes();
    if (const auto known = parts.files.find(name); known != parts.files.end()) {
      if (bytes != known->second.bytes)
        throw SystemError(
            fmt::format("{} has {} bytes instead of {}", at->path().string(), bytes, known->second.bytes));
      ++seen;
      continue;
    }
    sync_file(at->path());
    manifest.files[name] = {.bytes = bytes, .sha256 = sha256_file(at->path())};
  }
  if (error) throw SystemError("cannot list " + folder.string(), error.value());
  if (seen != parts.files.size())
    throw SystemError(fmt::format("{} has {} of the {} files that its writers have written", folder.string(),
                                  seen, parts.files.size()));
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  Manifest manifest = parse_manifest(read_text(checkpoint / kManifestName, kMostBytes));
  // A checkpoint copied under another name is still whole, but one under another step's name is a mistake.
  if (const auto step = parse_step_name(checkpoint.filename().string()); step && *step != manifest.step)
    throw UsageError(fmt::format("is of step {}", manifest.step));
  return manifest;
}

}  // namespace lockstep
