#include "launch/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "base/environment.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

bool is_program(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

std::string executable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw UsageError("program '" + path + "': " + SystemError("can't be started", errno).what());
  if (S_ISDIR(status.st_mode))
    throw UsageError("program '" + path + "' is a folder; accepted: an executable file");
  if (!is_program(path)) {
    const bool python = path.ends_with(".py");
    throw UsageError("program '" + path + "' is not executable; " +
                     (python ? "start it as: python3 " + path : "make it so with: chmod +x " + path));
  }
  return path;
}

}  // namespace

std::string in_path(const std::string& name) {
  const std::string path = read_variable("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    const std::string folder = path.substr(at, end - at);
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_program(candidate)) return candidate;
    at = end + 1;
  }
  return "";
}

std::string find_program(const std::string& name) {
  if (name.empty())
    throw UsageError("the program's name is empty; accepted: a path, or a name found in PATH");
  if (name.find('/') != std::string::npos) return executable(name);
  if (std::string found = in_path(name); !found.empty()) return found;
  struct stat status {};
  const bool here = ::stat(name.c_str(), &status) == 0;
  throw UsageError(
      "program '" + name + "' is not in PATH" +
      (here ? "; the one in this folder is started as ./" + name : "; accepted: a path or a name in PATH"));
}

}  // namespace lockstep::launcher
