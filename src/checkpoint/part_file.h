// A worker's part of a checkpoint's tensors, written to a file of its own: a safetensors file, whose bytes
// are hashed as they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/stored_form.h"

namespace lockstep {

// Elements [begin, end) of a tensor.
struct RunForm {
  std::string name;
  FileDType dtype = FileDType::f32;
  std::vector<std::int64_t> shape = {};  // of the whole tensor
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return (end - begin) * size_of(dtype); }
  bool whole() const;
};

// "model.safetensors", 1, 4 → "model-00001-of-00004.safetensors"
std::string part_name(const std::string& set, int part, int parts);

// In which order the bytes of these come in their file: indices of those that have any. Throws UsageError.
std::vector<std::size_t> order_of_runs(const std::vector<RunForm>& runs);

// The file of some runs. A tensor that is whole has its own name and form in it; a run of another is flat,
// and called "fc.weight[1024:2048]". Needs memory for a piece's hash and no more.
class PartFile {
 public:
  // Creates `folder`/`file` and writes its head. Runs of no elements are left out, unless the tensor has
  // none. Throws SystemError, UsageError.
  PartFile(const std::filesystem::path& folder, std::string file, std::string set,
           const std::vector<RunForm>& runs, const std::map<std::string, std::string>& metadata);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  // order_of_runs
  const std::vector<std::size_t>& order() const;
  // The next bytes. Throws SystemError.
  void write(std::span<const std::byte> bytes);
  // All bytes have come: syncs the file. What the manifest is to say of it. Throws SystemError.
  Manifest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
