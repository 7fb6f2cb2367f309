// The second program, `lockstep-train`: the half that needs libtorch, which takes a second to load. It lies
// beside this one and is started with what it has to do as JSON:
//   lockstep-train train|infer|step|'plan memory'|'sweep batch' REQUEST
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep::cli {

// Its words for a request. Throws SystemError saying what to install when it was not built.
std::vector<std::string> train_program(const std::string& what, const nlohmann::ordered_json& request);

// Becomes it. Does not return.
[[noreturn]] void become_train_program(const std::string& what, const nlohmann::ordered_json& request);

}  // namespace lockstep::cli
