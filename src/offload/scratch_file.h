// A file that only this process can reach and that has no name: it is gone when it is closed, also when the
// process is killed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/offload/offload.h"

namespace lockstep {

class ScratchFile {
 public:
  // What transfers past the page cache have to be aligned to, in memory and in the file.
  static constexpr std::size_t kAlign = 4096;

  // Room for all its bytes is made at once, so that a full disk shows here; they are zeros. Throws
  // OffloadError that names the folder, the size, and what is free where it doesn't fit.
  ScratchFile(std::filesystem::path folder, std::uint64_t bytes);

  int fd() const { return fd_.get(); }
  const std::filesystem::path& folder() const { return folder_; }
  std::uint64_t bytes() const { return bytes_; }
  OffloadPath path() const { return path_; }
  // Whether transfers go past the page cache: they are aligned then.
  bool direct() const { return path_ == OffloadPath::direct; }
  // Until the disk has what was written through the page cache, which is when it says what it could not
  // write. Throws OffloadError.
  void sync() const;

  // Any bytes of it, through a buffer of at most 1 MiB. Reads may go on side by side. Throw OffloadError.
  void read(std::uint64_t at, std::span<std::byte> into) const;
  void write(std::uint64_t at, std::span<const std::byte> from);

 private:
  void open_nameless();
  void make_room() const;
  void find_path();

  std::filesystem::path folder_;
  std::uint64_t bytes_;
  UniqueFd fd_;
  OffloadPath path_ = OffloadPath::page_cache;
};

// Throws UsageError that calls it `option` ("--offload /scratch"), where there is no such folder.
void expect_folder(const std::string& option, const std::filesystem::path& folder);

// ", direct", ", through the page cache", "; it is memory, not a disk": behind how the file is read and
// written.
const char* path_text(OffloadPath path);

// "cannot read the scratch file in /scratch: Input/output error"
std::string transfer_text(const char* verb, const std::filesystem::path& folder);

// All of `bytes`, which is aligned where the file is direct. Throw OffloadError: also where the file ends
// before, which nobody has cut.
void read_fully(const ScratchFile& file, std::uint64_t at, std::span<std::byte> bytes);
void write_fully(const ScratchFile& file, std::uint64_t at, std::span<const std::byte> bytes);

}  // namespace lockstep
