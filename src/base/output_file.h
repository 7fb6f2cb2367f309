// Files written with every error seen and told with the file's name: "cannot write FILE: No space left on
// device".
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

#include "lockstep/base/fd.h"

namespace lockstep {

// All of `bytes`, to a descriptor of `file`. Throws SystemError.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& file);

// A new file. Until finish() has returned it is a draft: the destructor removes it.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path file);  // throws SystemError, also when the file exists
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes) { write_all(fd_.get(), bytes, file_); }
  void finish();  // syncs and closes; throws SystemError

 private:
  std::filesystem::path file_;
  UniqueFd fd_;
};

enum class Sync : bool { no, yes };              // yes: its bytes are on disk before it has its name
enum class Existing : bool { refuse, replace };  // what becomes of a file that has the name already

// Takes the next bytes of a file.
using PieceWriter = std::function<void(std::span<const std::byte>)>;

// What `fill` hands to its argument, piece by piece, becomes the whole of `file`: a reader sees the old or
// the new one, never half of one. Where the file system can (O_TMPFILE) the new one has no name until it is
// whole, so that a writer that is killed leaves nothing; elsewhere it stands beside the old one meanwhile, as
// ".NAME.PID". Throws SystemError, and what `fill` throws, and then leaves nothing.
void publish_file(const std::filesystem::path& file, const std::function<void(const PieceWriter&)>& fill,
                  Sync sync, Existing existing);

// The same of a text, in place of the old one.
void replace_file(const std::filesystem::path& file, std::string_view text, Sync sync);

}  // namespace lockstep
