#include "checkpoint/stored_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/pieces.h"
#include "checkpoint/safetensors_file.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep {

namespace fs = std::filesystem;

bool has_set(const fs::path& checkpoint, const std::string& set) {
  const Manifest manifest = read_manifest(checkpoint);
  return manifest.sets.contains(set) || manifest.files.contains(set);
}

StoredTensors::StoredTensors(const fs::path& checkpoint, const std::string& set) try
    : checkpoint_(checkpoint), file_(set) {
  Manifest manifest = read_manifest(checkpoint);
  if (const auto found = manifest.sets.find(set); found != manifest.sets.end()) {
    metadata_ = std::move(found->second.metadata);
    runs_ = std::move(found->second.tensors);
    for (const auto& [name, tensor] : runs_) {
      forms_[name] = {.dtype = tensor.dtype,
                      .shape = tensor.shape,
                      .bytes = tensor_bytes(tensor.dtype, tensor.shape, name)};
      for (const StoredRun& run : tensor.runs) in_parts_ = in_parts_ || run.file != set;
    }
    return;
  }
  auto input = std::make_unique<InputFile>(checkpoint / set);
  SafetensorsHeader header = read_header(*input);
  metadata_ = std::move(header.metadata);
  // A header that could be read ends its last tensor where the file ends.
  const std::uint64_t data = input->bytes() - (header.tensors.empty() ? 0 : header.tensors.back().end);
  bytes_read_ += data;
  for (const TensorEntry& entry : header.tensors) {
    forms_[entry.name] = {.dtype = entry.dtype, .shape = entry.shape, .bytes = entry.end - entry.begin};
    at_[entry.name] = data + entry.begin;
  }
  open_[set] = std::move(input);
} catch (const UsageError& wrong) {
  throw UsageError("cannot load " + (checkpoint / set).string() + ": " + wrong.what());
}

StoredTensors::~StoredTensors() = default;

const InputFile& StoredTensors::open(const std::string& file) const {
  auto& input = open_[file];
  if (!input) input = std::make_unique<InputFile>(checkpoint_ / file);
  return *input;
}

void StoredTensors::read(const std::string& name, std::uint64_t begin, std::uint64_t end,
                         const Take& take) const {
  const Form& form = forms_.at(name);
  const std::uint64_t size = size_of(form.dtype);
  if (const auto whole = at_.find(name); whole != at_.end()) {
    std::vector<std::byte> some(std::min<std::uint64_t>(kReadBytes, (end - begin) * size));
    for (std::uint64_t at = begin * size; at < end * size; at += some.size()) {
      some.resize(std::min<std::uint64_t>(kReadBytes, end * size - at));
      open(file_).read_at(whole->second + at, some);
      bytes_read_ += some.size();
      take(some);
    }
    return;
  }
  const StoredTensor& tensor = runs_.at(name);
  for (const StoredRun& run : tensor.runs) {
    const std::uint64_t from = std::max(begin, run.begin), to = std::min(end, run.end);
    if (from >= to) continue;
    const std::string altered = read_pieces(open(run.file), tensor, run, from, to, take);
    const std::uint64_t first = (from - run.begin) * size / kPieceBytes;
    const std::uint64_t last = pieces_of((to - run.begin) * size);
    bytes_read_ += std::min(last * kPieceBytes, tensor.bytes_of(run)) - first * kPieceBytes;
    if (!altered.empty())
      refuse_damaged(checkpoint_, fmt::format("{} was altered (the SHA-256 of {} of {} differs)",
                                              (checkpoint_ / run.file).string(), altered, show_name(name)));
  }
}

void StoredTensors::read(const std::string& name, std::uint64_t begin, std::uint64_t end,
                         std::span<std::byte> into) const {
  read(name, begin, end, [&](std::span<const std::byte> bytes) {
    std::memcpy(into.data(), bytes.data(), bytes.size());
    into = into.subspan(bytes.size());
  });
}

void StoredTensors::read_whole(const std::string& name, const Take& take) const {
  const Form& form = forms_.at(name);
  read(name, 0, form.bytes / size_of(form.dtype), take);
}

}  // namespace lockstep
