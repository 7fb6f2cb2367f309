// What a checkpoint consists of: manifest.json.
//
// compose gives one text for one manifest and parse accepts nothing else, so that a single changed byte of
// the file is seen: either a file's hash no longer fits, or the manifest's own hash, or the form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr const char* kManifestName = "manifest.json";

struct Manifest {
  struct File {
    std::uint64_t bytes = 0;
    std::string sha256;

    bool operator==(const File&) const = default;
  };
  std::int64_t step = 0;
  std::map<std::string, File> files;  // by plain name

  bool operator==(const Manifest&) const = default;
};

std::string compose_manifest(const Manifest& manifest);
Manifest parse_manifest(
    std::string_view text);  // throws UsageError with what is wrong, without the file's name

// Sizes, hashes and syncs every file of `folder`. Throws UsageError for anything that is no plain file.
Manifest describe_folder(const std::filesystem::path& folder, std::int64_t step);

// The manifest of the folder `checkpoint`. Throws UsageError as parse_manifest does, also when it is of
// another step than the folder's name says; SystemError when it can't be read.
Manifest read_manifest(const std::filesystem::path& checkpoint);

// Compares the folder `checkpoint` with its manifest. Empty when it is whole; else one clause that names the
// file and what is wrong with it. Throws RefusedFile.
std::string find_damage(const std::filesystem::path& checkpoint);

}  // namespace lockstep
