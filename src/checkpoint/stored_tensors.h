// The tensors of a checkpoint, read when they are needed and as far as they are needed: those of one
// safetensors file, or of the parts that several workers have written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/file.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/stored_form.h"

namespace lockstep {

// Where the checkpoint has parts every byte is held against its hash as it is read, and what differs is a
// DamagedCheckpoint (lockstep/checkpoint/store.h) that names the tensor. Of a checkpoint without them the
// hashes are of whole files: verify_checkpoint.
class StoredTensors {
 public:
  struct Form {
    FileDType dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes = 0;
  };

  // `set`: "model.safetensors". Throws UsageError with the file's name when there is no such set or its file
  // is no safetensors file, SystemError when it can't be read.
  StoredTensors(const std::filesystem::path& checkpoint, const std::string& set);
  ~StoredTensors();
  StoredTensors(const StoredTensors&) = delete;
  StoredTensors& operator=(const StoredTensors&) = delete;

  const std::map<std::string, Form>& forms() const { return forms_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Whether another file than that of the set's name has some of it.
  bool in_parts() const { return in_parts_; }

  // Elements [begin, end) of a tensor, to `take` in order, piece by piece. Throws SystemError,
  // DamagedCheckpoint, and what `take` throws.
  using Take = std::function<void(std::span<const std::byte>)>;
  void read(const std::string& name, std::uint64_t begin, std::uint64_t end, const Take& take) const;
  void read(const std::string& name, std::uint64_t begin, std::uint64_t end, std::span<std::byte> into) const;
  void read_whole(const std::string& name, const Take& take) const;
  // Read from files so far, what was read for its hash included.
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  const InputFile& open(const std::string& file) const;

  std::filesystem::path checkpoint_;
  std::map<std::string, Form> forms_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, StoredTensor> runs_;  // none where the file is whole
  std::map<std::string, std::uint64_t> at_;   // of the whole file: where each tensor begins
  std::string file_;                          // the whole file
  bool in_parts_ = false;
  mutable std::map<std::string, std::unique_ptr<InputFile>> open_;
  mutable std::uint64_t bytes_read_ = 0;
};

// Whether the checkpoint has that set of tensors. Throws as read_manifest does.
bool has_set(const std::filesystem::path& checkpoint, const std::string& set);

}  // namespace lockstep
