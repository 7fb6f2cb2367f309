#include "cli/train_program.h"

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "launch/run_and_wait.h"
#include "launch/starter.h"
#include "lockstep/base/error.h"
#include "recipe/train_options.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

// The flag in the request, or in its options, whose value is no UTF-8.
std::string find_bad_flag(const Json& json) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_string() && !is_utf8(value.get<std::string>())) return flag_of(key);
    if (value.is_object())
      if (std::string found = find_bad_flag(value); !found.empty()) return found;
  }
  return "";
}

std::string text_of(const Json& request) {
  try {
    return request.dump();
  } catch (const Json::exception&) {
    throw UsageError(find_bad_flag(request) + ": its name is not UTF-8; accepted: names in UTF-8");
  }
}

}  // namespace

std::vector<std::string> train_program(const std::string& what, const nlohmann::ordered_json& request) {
  if (!is_utf8(std::filesystem::current_path().string()))
    throw UsageError("the name of the current folder is not UTF-8; accepted: folders with names in UTF-8");
  const std::string own = own_path();
  const std::string path = own.substr(0, own.rfind('/') + 1) + "lockstep-train";
  if (::access(path.c_str(), X_OK) != 0)
    throw SystemError(
        "training is not in this build, because libtorch was not found when it was made; install "
        "libtorch-dev and "
        "libssl-dev and build again (lockstep-train belongs beside lockstep)");
  return {path, what, text_of(request)};
}

void become_train_program(const std::string& what, const nlohmann::ordered_json& request) {
  become(train_program(what, request));
}

}  // namespace lockstep::cli
