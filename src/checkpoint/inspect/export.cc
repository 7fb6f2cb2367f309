#include "checkpoint/inspect/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "checkpoint/inspect/listing.h"
#include "checkpoint/manifest.h"
#include "checkpoint/stored_tensors.h"
#include "checkpoint/training_files.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/folder.h"
#include "lockstep/checkpoint/store.h"
#include "report/table.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using OnWritten = std::function<void(std::uint64_t bytes, std::uint64_t total)>;

// The new file, before any byte of it is read.
struct Assembly {
  struct Origin {
    const StoredTensors* set;
    std::string name;  // in it
  };
  SafetensorsHeader header;
  std::map<std::string, Origin> origins;  // by the name in the new file
  std::size_t masters = 0;
};

void check_out(const ExportOptions& options) {
  if (options.out.empty())
    throw UsageError("--out is needed: the file to write, for example weights.safetensors");
  const std::string shown = fmt::format("'{}'", options.out.string());
  const fs::path folder = options.out.has_parent_path() ? options.out.parent_path() : ".";
  std::error_code unknown;
  if (!fs::is_directory(folder, unknown))
    throw UsageError(
        fmt::format("--out {}: there is no folder {}; accepted: a file in a folder that is there", shown,
                    folder.string()));
  const fs::file_type there = fs::symlink_status(options.out, unknown).type();
  if (there == fs::file_type::directory)
    throw UsageError("--out " + shown + " is a folder; accepted: a file, for example weights.safetensors");
  if (there != fs::file_type::not_found && options.existing == Existing::refuse)
    throw UsageError("--out " + shown + " is there; accepted: another name, or --overwrite");
  if (fs::exists(folder / kManifestName, unknown))
    throw UsageError("--out " + shown +
                     " lies in a checkpoint, which has the files of its manifest and no "
                     "other; accepted: any other folder");
}

bool is_narrow(const StoredTensors::Form& form) {
  return form.dtype == FileDType::f16 || form.dtype == FileDType::bf16;
}

// Throws SystemError: what is asked for is right, and what is there is not.
std::unique_ptr<StoredTensors> open_set(const fs::path& checkpoint, const std::string& set) try {
  return std::make_unique<StoredTensors>(checkpoint, set);
} catch (const UsageError& wrong) {
  throw SystemError(wrong.what());
}

// `optimizer`: where masters are; null where none are wanted, or there is no such set.
Assembly assemble(const StoredTensors& model, const StoredTensors* optimizer) {
  Assembly assembly{.header = {.tensors = {}, .metadata = model.metadata()}, .origins = {}};
  for (const auto& [name, own] : model.forms()) {
    const std::string in_f32 = std::string(kMasterKind) + name;
    const bool has_master = optimizer != nullptr && optimizer->forms().contains(in_f32);
    const StoredTensors::Form& form = has_master ? optimizer->forms().at(in_f32) : own;
    if (form.shape != own.shape)
      throw SystemError(fmt::format("{} has {} as [{}], {} has {} as [{}]: they are not of one model",
                                    kWeightsFile, show_name(name), fmt::join(own.shape, ", "), kOptimizerFile,
                                    show_name(in_f32), fmt::join(form.shape, ", ")));
    assembly.header.tensors.push_back({.name = name, .dtype = form.dtype, .shape = form.shape});
    assembly.origins[name] = {.set = has_master ? optimizer : &model, .name = has_master ? in_f32 : name};
    if (has_master) ++assembly.masters;
  }
  lay_out(assembly.header.tensors);
  return assembly;
}

ExportReport export_one(const fs::path& checkpoint, const ExportOptions& options,
                        const OnWritten& on_written) {
  const Manifest manifest = read_manifest(checkpoint);
  if (!has_set(checkpoint, kWeightsFile)) {
    std::vector<std::string> names;
    for (const auto& [name, file] : manifest.files) names.push_back(name);
    throw UsageError(fmt::format("{} has no {}, but {}; accepted: the checkpoint of a training run",
                                 checkpoint.string(), kWeightsFile, fmt::join(names, ", ")));
  }
  const auto model = open_set(checkpoint, kWeightsFile);
  std::unique_ptr<StoredTensors> optimizer;
  if (options.weights == ExportedWeights::master && has_set(checkpoint, kOptimizerFile))
    optimizer = open_set(checkpoint, kOptimizerFile);
  Assembly assembly = assemble(*model, optimizer.get());
  if (options.weights == ExportedWeights::master && assembly.masters == 0 &&
      std::ranges::any_of(model->forms(), [](const auto& one) { return is_narrow(one.second); }))
    throw UsageError(fmt::format("{} has weights of 16 bits and no master weights; accepted: no --master",
                                 checkpoint.string()));
  assembly.header.metadata.emplace("step", std::to_string(manifest.step));

  const std::string head = compose_header(assembly.header);
  const auto& tensors = assembly.header.tensors;
  const std::uint64_t total = head.size() + (tensors.empty() ? 0 : tensors.back().end);
  publish_file(
      options.out,
      [&](const PieceWriter& write) {
        const auto add = [&](std::span<const std::byte> bytes) {
          write(bytes);
          if (on_written) on_written(bytes.size(), total);
        };
        add(std::as_bytes(std::span(head)));
        for (const TensorEntry& entry : tensors) {
          const Assembly::Origin& origin = assembly.origins.at(entry.name);
          origin.set->read_whole(origin.name, add);
        }
      },
      Sync::yes, options.existing);
  sync_folder(options.out.has_parent_path() ? options.out.parent_path() : ".");
  return {.checkpoint = checkpoint,
          .out = options.out,
          .step = manifest.step,
          .tensors = tensors.size(),
          .masters = assembly.masters,
          .bytes = total};
}

}  // namespace

ExportReport export_weights(const fs::path& from, const ExportOptions& options, const OnWritten& on_written) {
  check_out(options);
  ExportReport report;
  try {
    use_checkpoint(from,
                   [&](const fs::path& checkpoint) { report = export_one(checkpoint, options, on_written); });
  } catch (const DamagedCheckpoint& damaged) {
    throw SystemError(damaged.what());
  }
  report.checkpoint = as_given(report.checkpoint, from);
  return report;
}

nlohmann::ordered_json to_json(const ExportReport& report) {
  return {{"checkpoint", report.checkpoint.string()},
          {"step", report.step},
          {"out", report.out.string()},
          {"tensors", report.tensors},
          {"masters", report.masters},
          {"bytes", report.bytes}};
}

std::string describe(const ExportReport& report) {
  const std::string masters = report.masters == 0 ? "" : fmt::format(" ({} of them masters)", report.masters);
  return fmt::format("{}: {}{}, {}, from {}\n", report.out.string(),
                     counted(static_cast<std::int64_t>(report.tensors), "tensor"), masters,
                     format_bytes(report.bytes), report.checkpoint.string());
}

}  // namespace lockstep
