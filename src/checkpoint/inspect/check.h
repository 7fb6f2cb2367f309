// Whether a checkpoint is whole: every file of it looked at, and everything that is wrong told. Files are
// read piece by piece, so memory does not grow with them.
//
// verify_checkpoint (lockstep/checkpoint/store.h) is for who wants to go on from one: it stops at the first
// fault.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/inspect/listing.h"

namespace lockstep {

enum class Condition : std::uint8_t {
  whole,
  unreadable,  // this process may not read a file of it, and no other one is damaged: nobody knows
  damaged,
};
const char* to_string(Condition condition);

struct FileFault {
  std::string file;  // its name in the checkpoint
  std::string what;  // "has 100 bytes instead of 120"
};

struct CheckReport {
  std::filesystem::path folder;
  std::optional<std::int64_t> step;
  Condition condition = Condition::whole;
  std::size_t files = 0;    // that its manifest names
  std::uint64_t bytes = 0;  // that they should have
  std::vector<FileFault> faults = {};
};

// Size and SHA-256 of every file that the manifest names, and the headers of safetensors files. Other files
// in the folder don't count. `on_read` is told of bytes as they are read. None when the run that writes it
// has removed the checkpoint meanwhile.
std::optional<CheckReport> check_checkpoint(const ListedCheckpoint& listed,
                                            const std::function<void(std::uint64_t)>& on_read = {});

nlohmann::ordered_json to_json(const CheckReport& report);
std::string describe(const CheckReport& report);  // one line, with its end

}  // namespace lockstep
