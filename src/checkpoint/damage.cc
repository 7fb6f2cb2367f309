// What is wrong with the files of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/pieces.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/sha256.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using OnRead = std::function<void(std::uint64_t)>;

std::string head_sha256(const InputFile& input, std::uint64_t bytes, const OnRead& on_read) {
  std::vector<std::byte> piece(std::min(bytes, kReadBytes));
  Sha256 hash;
  for (std::uint64_t at = 0; at < bytes; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), bytes - at));
    input.read_at(at, piece);
    hash.update(piece);
    if (on_read) on_read(piece.size());
  }
  return hash.hex();
}

// Every run of the file, one after the other; the first few that differ are named.
std::string altered_runs(const InputFile& input, const std::string& file, const Manifest& manifest,
                         const OnRead& on_read) {
  constexpr int kMostNamed = 3;
  std::string found;
  int altered = 0;
  for (const auto& [set, content] : manifest.sets)
    for (const auto& [name, tensor] : content.tensors)
      for (const StoredRun& run : tensor.runs) {
        if (run.file != file) continue;
        const std::string where = find_altered_piece(input, tensor, run, on_read);
        if (!where.empty() && ++altered <= kMostNamed)
          found += fmt::format("{}{} of {}", found.empty() ? "" : ", ", where, name);
      }
  if (altered == 0) return "";
  if (altered > kMostNamed) found += fmt::format(" and {} more", altered - kMostNamed);
  return fmt::format("was altered (the SHA-256 of {} differs)", found);
}

}  // namespace

std::string find_fault(const fs::path& path, const Manifest& manifest, Depth depth, const OnRead& on_read) {
  const std::string name = path.filename().string();
  const Manifest::File& file = manifest.files.at(name);
  if (file.head == 0)
    return sha256_file(path, on_read) == file.sha256 ? "" : "was altered (its SHA-256 differs)";
  const InputFile input(path);
  if (head_sha256(input, file.head, on_read) != file.sha256)
    return "was altered (the SHA-256 of its header differs)";
  return depth == Depth::frame ? "" : altered_runs(input, name, manifest, on_read);
}

std::string find_damage(const fs::path& checkpoint, Depth depth) {
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
    for (const auto& [name, file] : manifest.files)
      if (const std::string fault = find_fault(checkpoint / name, manifest, depth); !fault.empty())
        return fmt::format("{} {}", (checkpoint / name).string(), fault);
    return "";
  } catch (const RefusedFile&) {
    throw;
  } catch (const SystemError& error) {
    return error.what();  // "cannot open …: No such file or directory"
  }
}

}  // namespace lockstep
