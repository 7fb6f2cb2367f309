// state.json of a checkpoint: how far its run was, and with which options.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr int kStateFormat = 1;  // of state.json

// Throws UsageError when it is none of ours, or of another format.
nlohmann::ordered_json read_state(const std::filesystem::path& checkpoint);

// The same of the file's text; `checkpoint` is what a refusal names.
nlohmann::ordered_json parse_state(std::string_view text, const std::string& checkpoint);

}  // namespace lockstep
