// Which data a run is trained on: where it lies, and what it is. Kept in every checkpoint.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/comm/group.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

struct DataRecord {
  std::string path;  // of the file or folder, absolute; empty: made, not read
  std::string
      train_sha256;  // Dataset::fingerprint(); empty: not known, as in checkpoints of earlier versions
  std::string test_sha256;
  std::int64_t train_size = 0;  // examples
  std::int64_t test_size = 0;
};

// Of data that was read or made; `test` may be none.
DataRecord record_of(const Dataset& train, const Dataset* test, const std::string& path);

nlohmann::ordered_json to_json(const DataRecord& record);
// From a checkpoint's state.json, or what to_json gave; empty when there is none. Throws UsageError; `where`
// begins the message.
DataRecord read_data_record(const nlohmann::ordered_json& json, const std::string& where);

// Throws UsageError when `now` is not the data of `before`, whatever the paths are: by hash, or, where the
// dataset has none, by size. `name` and `run`: what the user calls the data, and the run that it is of;
// `otherwise`: what is accepted beside the same data.
void check_same_data(const DataRecord& before, const DataRecord& now, const std::string& name,
                     const std::string& run, const std::string& otherwise);
// The same between the ranks, which each read their own files. Collective; throws on every rank.
void check_same_data(const Group& world, const DataRecord& own);

}  // namespace lockstep
