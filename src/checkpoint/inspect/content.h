// What one checkpoint holds: files, and tensors by name. Reads the manifest and headers, no tensor's bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors_header.h"

namespace lockstep {

// What a tensor is for.
enum class TensorPart : std::uint8_t {
  parameter,  // of the model, and the optimizer has state of it
  buffer,     // of the model, and the optimizer has none: statistics of batch norm, parameters that stay
  weight,     // of the model, where the optimizer's file does not tell which
  master,     // a parameter in f32, of which the model has 16 bits
  optimizer,  // other state of the optimizer
  other,
};
const char* to_string(TensorPart part);

struct ContentTensor {
  TensorEntry entry;
  TensorPart part = TensorPart::other;

  std::uint64_t bytes() const { return entry.end - entry.begin; }
  std::uint64_t elements() const { return bytes() / size_of(entry.dtype); }
};

struct ContentFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<ContentTensor> tensors = {};  // by name; none of what is no safetensors file
  std::size_t runs = 0;                     // of tensors that lie in several files; they are in `sets`
};

// Tensors that lie in several files.
struct ContentSet {
  std::string name;  // of the file that they would be in
  std::vector<ContentTensor> tensors = {};
  std::size_t parts = 0;  // files that have some of it
};

struct PartTotal {
  std::uint64_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
};

struct CheckpointContent {
  std::filesystem::path folder;
  std::vector<ContentFile> files;     // by name
  std::vector<ContentSet> sets = {};  // likewise

  // Of all files and sets: calls `use` with the file's or set's name, its parts (1: a file) and the tensor.
  void for_each(const std::function<void(const std::string&, std::size_t, const ContentTensor&)>& use) const;
  std::map<TensorPart, PartTotal> totals() const;  // of the parts that there are
};

// Throws SystemError that names the file and what is wrong with it.
CheckpointContent read_content(const std::filesystem::path& checkpoint);

nlohmann::ordered_json to_json(const CheckpointContent& content);
// For people: its files, its tensors, its totals, a table each.
std::string describe(const CheckpointContent& content, bool colours);

// Whether that name stands for a file of tensors.
bool holds_tensors(const std::filesystem::path& file);

}  // namespace lockstep
