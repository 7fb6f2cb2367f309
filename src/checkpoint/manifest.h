// What a checkpoint consists of: manifest.json.
//
// compose gives one text for one manifest and parse accepts nothing else, so that a single changed byte of
// the file is seen: either a file's hash no longer fits, or the manifest's own hash, or the form.
//
// Format 1 has files alone, each with its hash. Format 2 also has tensors by name and run of elements
// (stored_form.h): of a file that holds such runs the hash is that of its head, and the runs have their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/stored_form.h"

namespace lockstep {

inline constexpr const char* kManifestName = "manifest.json";

struct Manifest {
  struct File {
    std::uint64_t bytes = 0;
    std::string sha256;
    std::uint64_t head = 0;  // so many bytes have that hash, and runs of tensors the rest; 0: all have it

    bool operator==(const File&) const = default;
  };
  std::int64_t step = 0;
  std::map<std::string, File> files;  // by plain name
  TensorSets sets = {};

  bool operator==(const Manifest&) const = default;
};

std::string compose_manifest(const Manifest& manifest);
Manifest parse_manifest(
    std::string_view text);  // throws UsageError with what is wrong, without the file's name
// Puts together what several writers have made, each a text that compose_manifest gave. Throws UsageError
// where they contradict each other, or leave something out.
Manifest merge_parts(std::span<const std::string> parts);

// Sizes, hashes and syncs every file of `folder`; of those that `parts` tells all about, the size is looked
// at. Throws UsageError for anything that is no plain file.
Manifest describe_folder(const std::filesystem::path& folder, std::int64_t step, const Manifest& parts = {});

// The manifest of the folder `checkpoint`. Throws UsageError as parse_manifest does, also when it is of
// another step than the folder's name says; SystemError when it can't be read.
Manifest read_manifest(const std::filesystem::path& checkpoint);

enum class Depth : bool {
  frame,  // all but the runs of tensors, whose hashes are looked at when they are read (stored_tensors.h)
  whole,
};
// Compares the folder `checkpoint` with its manifest. Empty when it is whole; else one clause that names the
// file and what is wrong with it. Throws RefusedFile.
std::string find_damage(const std::filesystem::path& checkpoint, Depth depth = Depth::whole);

// What is wrong with a file that is there and has its size: "was altered (…)"; empty: nothing. Throws
// SystemError. `on_read` is told of bytes as they are read.
std::string find_fault(const std::filesystem::path& file, const Manifest& manifest, Depth depth,
                       const std::function<void(std::uint64_t)>& on_read = {});

}  // namespace lockstep
