// Files read with every error seen and told with the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep {

// The file is there, and this process may not open it, or can't just now (too many are open): nothing is
// known of what is in it.
class RefusedFile : public SystemError {
 public:
  using SystemError::SystemError;
};

// A plain file, read from its beginning, or anywhere. Throws SystemError: it is not there, is no plain file,
// can't be read; RefusedFile.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path file);

  std::uint64_t bytes() const { return bytes_; }  // when it was opened
  // Up to `into.size()` bytes; 0 at the end.
  std::size_t read_some(std::span<std::byte> into);
  // All of `into`; throws SystemError when the file ends before.
  void read_all(std::span<std::byte> into);
  // The same from `offset` on, wherever the others have come to.
  void read_at(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  std::filesystem::path file_;
  UniqueFd fd_;
  std::uint64_t bytes_ = 0;
};

// Makes what is in a file survive a power cut. Throws SystemError.
void sync_file(const std::filesystem::path& file);

// The whole of a small file; throws SystemError, also when it has more than `most` bytes.
std::string read_text(const std::filesystem::path& file, std::uint64_t most);

// Which folder the name stands for just now; 0: none.
std::uint64_t folder_number(const std::filesystem::path& folder);
// Whether the name stands for another folder than that of `number` by now, or for none: a run that goes on
// has removed it, perhaps before its number was asked for. One that can't be looked at was not.
bool was_removed(const std::filesystem::path& folder, std::uint64_t number);

}  // namespace lockstep
