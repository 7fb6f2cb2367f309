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

ContentFile read_content_file(const fs::path& file) try {
  InputFile input(file);
  ContentFile content{.name = file.filename().string(), .bytes = input.bytes()};
  if (!holds_tensors(file)) return content;
  for (TensorEntry& entry : read_header(input).tensors)
    content.tensors.push_back({.entry = std::move(entry)});
  std::ranges::sort(content.tensors, {},
                    [](const ContentTensor& one) -> const std::string& { return one.entry.name; });
  return content;
} catch (const UsageError& wrong) {
  throw SystemError(file.string() + ": " + wrong.what());
}

// Parameters by what the optimizer's file has of each.
std::set<std::string> trained_names(const std::vector<ContentFile>& files) {
  std::set<std::string> names;
  for (const ContentFile& file : files)
    for (const ContentTensor& tensor : file.tensors)
      if (file.name == kOptimizerFile && tensor.entry.name.starts_with(kStepKind))
        names.insert(tensor.entry.name.substr(kStepKind.size()));
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
  for (const auto& [name, file] : read_manifest(checkpoint).files)
    content.files.push_back(read_content_file(checkpoint / name));
  const std::set<std::string> trained = trained_names(content.files);
  for (ContentFile& file : content.files)
    for (ContentTensor& tensor : file.tensors) tensor.part = part_of(file.name, tensor.entry.name, trained);
  return content;
} catch (const UsageError& wrong) {  // of the manifest: what is asked for is right, and what is there is not
  throw SystemError((checkpoint / kManifestName).string() + " " + wrong.what());
}

std::map<TensorPart, PartTotal> CheckpointContent::totals() const {
  std::map<TensorPart, PartTotal> totals;
  for (const ContentFile& file : files) {
    for (const ContentTensor& tensor : file.tensors) {
      PartTotal& total = totals[tensor.part];
      ++total.tensors;
      total.elements += tensor.elements();
      total.bytes += tensor.bytes();
    }
  }
  return totals;
}

}  // namespace lockstep
