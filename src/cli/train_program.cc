#include "cli/train_program.h"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "cli/bench_start.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {

std::vector<std::string> train_program(const std::string& what, const nlohmann::ordered_json& request) {
  const std::string own = own_path();
  const std::string path = own.substr(0, own.rfind('/') + 1) + "lockstep-train";
  if (::access(path.c_str(), X_OK) != 0)
    throw SystemError(
        "training is not in this build, because libtorch was not found when it was made; install "
        "libtorch-dev and "
        "libssl-dev and build again (lockstep-train belongs beside lockstep)");
  return {path, what, request.dump()};
}

void become_train_program(const std::string& what, const nlohmann::ordered_json& request) {
  std::vector<std::string> words = train_program(what, request);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  throw SystemError("starting " + words[0], errno);
}

}  // namespace lockstep::cli
