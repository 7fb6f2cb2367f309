#include "train/data_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/option_name.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

std::string in_words(std::int64_t size, const std::string& sha256) {
  return sha256.empty() ? std::to_string(size) : fmt::format("{} with SHA-256 {:.12}…", size, sha256);
}

// What is not known by its hash is known by its size.
bool same_train(const DataRecord& a, const DataRecord& b) {
  return a.train_sha256 == b.train_sha256 && (!a.train_sha256.empty() || a.train_size == b.train_size);
}
bool same_test(const DataRecord& a, const DataRecord& b) {
  return a.test_sha256 == b.test_sha256 && (!a.test_sha256.empty() || a.test_size == b.test_size);
}

}  // namespace

DataRecord record_of(const Dataset& train, const Dataset* test, const std::string& path) {
  DataRecord record;
  record.path = path;
  record.train_sha256 = train.fingerprint();
  record.train_size = train.size();
  if (test == nullptr) return record;
  record.test_sha256 = test->fingerprint();
  record.test_size = test->size();
  return record;
}

Json to_json(const DataRecord& r) {
  return {{"path", r.path},
          {"train_sha256", r.train_sha256},
          {"test_sha256", r.test_sha256},
          {"train_size", r.train_size},
          {"test_size", r.test_size}};
}

DataRecord read_data_record(const Json& json, const std::string& where) {
  DataRecord r;
  if (json.is_null()) return r;
  try {
    json.at("path").get_to(r.path);
    json.at("train_sha256").get_to(r.train_sha256);
    json.at("test_sha256").get_to(r.test_sha256);
    for (const char* size : {"train_size", "test_size"})  // a number out of range would be anything
      if (!json.at(size).is_number_integer()) throw UsageError(where + ": " + size + " is no whole number");
    json.at("train_size").get_to(r.train_size);
    json.at("test_size").get_to(r.test_size);
  } catch (const Json::exception&) {
    throw UsageError(where + ": what it says about the run's data is not understood");
  }
  return r;
}

void check_same_data(const DataRecord& before, const DataRecord& now, const std::string& name,
                     const std::string& run, const std::string& otherwise) {
  if (before.train_sha256.empty() && before.train_size == 0) return;
  const bool train = !same_train(before, now);
  if (!train && same_test(before, now)) return;
  throw UsageError(fmt::format(
      "{} is not the data of {}: its {} examples are {}, those of the run {}; accepted: the same data at any "
      "path, or {}",
      option_text("data", name), run, train ? "training" : "test",
      train ? in_words(now.train_size, now.train_sha256) : in_words(now.test_size, now.test_sha256),
      train ? in_words(before.train_size, before.train_sha256)
            : in_words(before.test_size, before.test_sha256),
      otherwise));
}

void check_same_data(const Group& world, const DataRecord& own) {
  DataRecord without_path = own;
  without_path.path.clear();
  const std::vector<std::string> all = world.all_gather(to_json(without_path).dump());
  const DataRecord first = read_data_record(Json::parse(all[0]), "rank 0's data");
  for (int rank = 1; rank < world.size(); ++rank) {
    const DataRecord theirs =
        read_data_record(Json::parse(all[static_cast<std::size_t>(rank)]), "a rank's data");
    const bool train = !same_train(theirs, first);
    if (!train && same_test(theirs, first)) continue;
    const auto words = [&](const DataRecord& r) {
      return train ? in_words(r.train_size, r.train_sha256) : in_words(r.test_size, r.test_sha256);
    };
    throw UsageError(
        fmt::format("rank {} reads other data than rank 0 ({} and {} {} examples); accepted: the "
                    "same files on every machine",
                    rank, words(theirs), words(first), train ? "training" : "test"));
  }
}

}  // namespace lockstep
