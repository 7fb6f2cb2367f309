// Files read and written with every error seen and told with the file's name.
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

// A plain file, read from its beginning. Throws SystemError: it is not there, is no plain file, can't be
// read; RefusedFile.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path file);

  std::uint64_t bytes() const { return bytes_; }  // when it was opened
  // Up to `into.size()` bytes; 0 at the end.
  std::size_t read_some(std::span<std::byte> into);
  // All of `into`; throws SystemError when the file ends before.
  void read_all(std::span<std::byte> into);

 private:
  std::filesystem::path file_;
  UniqueFd fd_;
  std::uint64_t bytes_ = 0;
};

// A new file. Until finish() has returned it is a draft: the destructor removes it.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path file);  // throws SystemError, also when the file exists
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);  // throws SystemError: a full disk
  void finish();                                 // syncs and closes; throws SystemError

 private:
  std::filesystem::path file_;
  UniqueFd fd_;
};

// Makes what is in a file, or which names a folder holds, survive a power cut. Throws SystemError.
void sync_file(const std::filesystem::path& file);
void sync_folder(const std::filesystem::path& folder);

// The whole of a small file; throws SystemError, also when it has more than `most` bytes.
std::string read_text(const std::filesystem::path& file, std::uint64_t most);

}  // namespace lockstep
