#include "checkpoint/inspect/content.h"

#include <algorithm>
#include <set>

#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/training_files.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// `in_parts`: it has runs of tensors, which the manifest tells of.
ContentFile read_content_file(const fs::path& file, bool in_parts) try {
  InputFile input(file);
  ContentFile content{.name = file.filename().string(), .bytes = input.bytes()};
  if (!holds_tensors(file)) return content;
  SafetensorsHeader header = read_header(input);
  if (in_parts) {
    content.runs = header.tensors.size();
    return content;
  }
  for (TensorEntry& entry : header.tensors) content.tensors.push_back({.entry = std::move(entry)});
  std::ranges::sort(content.tensors, {},
                    [](const ContentTensor& one) -> const std::string& { return one.entry.name; });
  return content;
} catch (const UsageError& wrong) {
  throw SystemError(file.string() + ": " + wrong.what());
}

// Of a set that does not lie in the file of its name.
ContentSet content_set(const std::string& name, const TensorSet& set) {
  ContentSet content{.name = name};
  std::set<std::string> files;
  for (const auto& [tensor, form] : set.tensors) {
    for (const StoredRun& run : form.runs) files.insert(run.file);
    content.tensors.push_back({.entry = {.name = tensor,
                                         .dtype = form.dtype,
                                         .shape = form.shape,
                                         .begin = 0,
                                         .end = tensor_bytes(form.dtype, form.shape, tensor)}});
  }
  content.parts = files.size();
  return content;
}

// Parameters by what the optimizer's file has of each.
std::set<std::string> trained_names(const CheckpointContent& content) {
  std::set<std::string> names;
  content.for_each([&](const std::string& file, std::size_t, const ContentTensor& tensor) {
    if (file == kOptimizerFile && tensor.entry.name.starts_with(kStepKind))
      names.insert(tensor.entry.name.substr(kStepKind.size()));
  });
  return names;
}

TensorPart part_of(const std::string& file, const std::string& name, const std::set<std::string>& trained) {
  if (file == kWeightsFile)
    return trained.empty()          ? TensorPart::weight
           : trained.contains(name) ? TensorPart::parameter
                                    : TensorPart::buffer;
  if (file == kOptimizerFile)
    return name.starts_with(kMasterKind) ? TensorPart::master : TensorPart::optimizer;
  return TensorPart::other;
}

}  // namespace

bool holds_tensors(const fs::path& file) { return file.extension() == ".safetensors"; }

const char* to_string(TensorPart part) {
  switch (part) {
    case TensorPart::parameter: return "parameter";
    case TensorPart::buffer: return "buffer";
    case TensorPart::weight: return "weight";
    case TensorPart::master: return "master";
    case TensorPart::optimizer: return "optimizer";
    case TensorPart::other: return "other";
  }
  return "?";
}

CheckpointContent read_content(const fs::path& checkpoint) try {
  CheckpointContent content{.folder = checkpoint, .files = {}};
  const Manifest manifest = read_manifest(checkpoint);
  for (const auto& [name, file] : manifest.files)
    content.files.push_back(
        read_content_file(checkpoint / name, file.head != 0 && !manifest.sets.contains(name)));
  for (const auto& [name, set] : manifest.sets)
    if (!manifest.files.contains(name)) content.sets.push_back(content_set(name, set));
  const std::set<std::string> trained = trained_names(content);
  const auto tell_parts = [&](auto& holders) {
    for (auto& holder : holders)
      for (ContentTensor& tensor : holder.tensors)
        tensor.part = part_of(holder.name, tensor.entry.name, trained);
  };
  tell_parts(content.files);
  tell_parts(content.sets);
  return content;
} catch (const UsageError& wrong) {  // of the manifest: what is asked for is right, and what is there is not
  throw SystemError((checkpoint / kManifestName).string() + " " + wrong.what());
}

void CheckpointContent::for_each(
    const std::function<void(const std::string&, std::size_t, const ContentTensor&)>& use) const {
  for (const ContentFile& file : files)
    for (const ContentTensor& tensor : file.tensors) use(file.name, 1, tensor);
  for (const ContentSet& set : sets)
    for (const ContentTensor& tensor : set.tensors) use(set.name, set.parts, tensor);
}

std::map<TensorPart, PartTotal> CheckpointContent::totals() const {
  std::map<TensorPart, PartTotal> totals;
  for_each([&](const std::string&, std::size_t, const ContentTensor& tensor) {
    PartTotal& total = totals[tensor.part];
    ++total.tensors;
    total.elements += tensor.elements();
    total.bytes += tensor.bytes();
  });
  return totals;
}

}  // namespace lockstep
