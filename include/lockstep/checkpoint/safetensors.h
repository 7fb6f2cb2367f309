// Weights on disk in the safetensors format (an 8-byte header length, a JSON header, raw little-endian
// bytes), as Python's safetensors reads and writes them.
//
// Element types: BOOL, U8, I8, I16, I32, I64, F16, BF16, F32, F64.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>

namespace lockstep {

using TensorMap = std::map<std::string, torch::Tensor>;
using Metadata = std::map<std::string, std::string>;

// Writes and syncs the file, which must not exist; a file that could not be finished is removed. The widest
// element types come first and then names in order, so that every tensor is aligned in the file: readers that
// map it rely on that. Throws SystemError (a full disk) and UsageError (a tensor that the format can't hold).
void save_safetensors(const std::filesystem::path& file, const TensorMap& tensors,
                      const Metadata& metadata = {});

struct SafetensorsFile {
  TensorMap tensors;  // on the CPU, each with its own memory
  Metadata metadata;
};
// Throws UsageError naming the file and what is wrong with it (every byte is treated as hostile), SystemError
// when it can't be read.
SafetensorsFile load_safetensors(const std::filesystem::path& file);

}  // namespace lockstep
