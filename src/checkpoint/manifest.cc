#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <type_traits>

#include "checkpoint/file.h"
#include "checkpoint/step_name.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/sha256.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;

// A file of this folder and of no other.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifestName &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

// The library would convert any number, also one far outside of the type's range, for which C++ has no
// answer.
template <class Integer>
Integer whole_number(const nlohmann::json& json) {
  if (!(std::is_unsigned_v<Integer> ? json.is_number_unsigned() : json.is_number_integer()))
    throw UsageError("has " + json.dump().substr(0, 40) + " where a whole number of 64 bits belongs");
  return json.get<Integer>();
}

nlohmann::json to_json(const Manifest& manifest) {
  nlohmann::json files = nlohmann::json::object();
  for (const auto& [name, file] : manifest.files)
    files[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
  return {{"format", 1}, {"step", manifest.step}, {"files", files}};
}

}  // namespace

std::string compose_manifest(const Manifest& manifest) {
  nlohmann::json json = to_json(manifest);
  json["sha256"] = sha256_text(json.dump());
  return json.dump(1) + "\n";
}

Manifest parse_manifest(std::string_view text) {
  Manifest manifest;
  try {
    const auto json = nlohmann::json::parse(text.begin(), text.end());
    if (json.at("format") != 1) {
      throw UsageError(fmt::format("has format {}; accepted: 1", json.at("format").dump()));
    }
    manifest.step = whole_number<std::int64_t>(json.at("step"));
    for (const auto& [name, file] : json.at("files").items()) {
      if (!is_plain_name(name)) throw UsageError("names a file outside of the checkpoint");
      manifest.files[name] = {.bytes = whole_number<std::uint64_t>(file.at("bytes")),
                              .sha256 = file.at("sha256").get<std::string>()};
    }
    if (compose_manifest(manifest) == text) return manifest;
  } catch (const nlohmann::json::exception&) {
    throw UsageError("is cut off or altered (no manifest can be read from it)");
  }
  throw UsageError("was altered (its own SHA-256 or its form does not fit)");
}

Manifest describe_folder(const std::filesystem::path& folder, std::int64_t step) {
  Manifest manifest{.step = step, .files = {}};
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name == kManifestName || !std::filesystem::is_regular_file(at->symlink_status())) {
      throw UsageError(fmt::format("{} can't be part of a checkpoint; accepted: plain files not called {}",
                                   at->path().string(), kManifestName));
    }
    sync_file(at->path());
    manifest.files[name] = {.bytes = InputFile(at->path()).bytes(), .sha256 = sha256_file(at->path())};
  }
  if (error) throw SystemError("cannot list " + folder.string(), error.value());
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  Manifest manifest = parse_manifest(read_text(checkpoint / kManifestName, kMostBytes));
  // A checkpoint copied under another name is still whole, but one under another step's name is a mistake.
  if (const auto step = parse_step_name(checkpoint.filename().string()); step && *step != manifest.step)
    throw UsageError(fmt::format("is of step {}", manifest.step));
  return manifest;
}

std::string find_damage(const std::filesystem::path& checkpoint) {
  try {
    Manifest manifest;
    try {
      manifest = read_manifest(checkpoint);
    } catch (const UsageError& wrong) {
      return fmt::format("{} {}", (checkpoint / kManifestName).string(), wrong.what());
    }
    for (const auto& [name, file] : manifest.files) {
      const auto path = checkpoint / name;
      if (const auto bytes = InputFile(path).bytes(); bytes != file.bytes) {
        return fmt::format("{} has {} bytes instead of {}", path.string(), bytes, file.bytes);
      }
    }
    for (const auto& [name, file] : manifest.files) {
      const auto path = checkpoint / name;
      if (sha256_file(path) != file.sha256)
        return fmt::format("{} was altered (its SHA-256 differs)", path.string());
    }
    return "";
  } catch (const RefusedFile&) {
    throw;
  } catch (const SystemError& error) {
    return error.what();  // "cannot open …: No such file or directory"
  }
}

}  // namespace lockstep
