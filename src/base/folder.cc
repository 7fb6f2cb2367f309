#include "lockstep/base/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep {
namespace fs = std::filesystem;

void sync_folder(const fs::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw SystemError("cannot open the folder " + folder.string(), errno);
  if (::fsync(fd.get()) != 0) throw SystemError("cannot sync the folder " + folder.string(), errno);
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::path at = fs::absolute(folder, error);
  if (error) throw SystemError("cannot find the folder " + folder.string(), error.value());
  if (!at.has_filename()) at = at.parent_path();  // "a/b/" would be a folder "" inside a/b
  std::vector<fs::path> missing;  // the innermost first; "." and ".." are among them and are there
  for (; !fs::exists(at, error) && at.has_relative_path(); at = at.parent_path()) missing.push_back(at);
  for (auto made = missing.rbegin(); made != missing.rend(); ++made) {
    // Another process may make it at the same time, and be killed before it has synced it.
    if (::mkdir(made->c_str(), 0777) != 0 && errno != EEXIST)
      throw SystemError("cannot create the folder " + folder.string(), errno);
    sync_folder(made->parent_path());
  }
  if (!fs::is_directory(folder, error))
    throw SystemError("cannot create the folder " + folder.string(), error ? error.value() : ENOTDIR);
}

}  // namespace lockstep
