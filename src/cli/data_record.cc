#include "cli/data_record.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/shell_word.h"
#include "cli/train_task.h"
#include "lockstep/base/error.h"
#include "lockstep/data/open_dataset.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool is_name(const std::string& data) {
  const std::vector<std::string>& names = dataset_names();
  return std::find(names.begin(), names.end(), data) != names.end();
}

// Where the options' data is said to be.
std::string& place_of(TrainOptions& o) { return is_name(o.data) ? o.data_dir : o.data; }

std::string in_words(std::int64_t size, const std::string& sha256) {
  return fmt::format("{} with SHA-256 {:.12}…", size, sha256);
}

}  // namespace

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

DataRecord record_data(const TrainOptions& options, const TrainData& data) {
  TrainOptions o = options;
  const std::string place = place_of(o);
  return {.path = place.empty() ? "" : fs::absolute(place).lexically_normal().string(),
          .train_sha256 = data.train->fingerprint(),
          .test_sha256 = data.test->fingerprint(),
          .train_size = data.train->size(),
          .test_size = data.test->size()};
}

TrainOptions locate_data(TrainOptions o, const DataRecord& before) {
  std::error_code ignored;
  std::string& place = place_of(o);
  if (place.empty() || before.path.empty()) return o;
  const bool made_again = o.data == "shapes" || o.data == "synthetic";
  if (fs::exists(before.path, ignored))
    place = before.path;
  else if (!fs::exists(place, ignored) && !made_again)
    throw UsageError(fmt::format("the run's data is not at {} any more; {} says where it is now", before.path,
                                 is_name(o.data) ? "--data-dir" : "--data"));
  return o;
}

void check_same_data(const TrainOptions& o, const DataRecord& before, const DataRecord& now) {
  if (before.train_sha256.empty()) return;
  const bool train = before.train_sha256 != now.train_sha256;
  if (!train && before.test_sha256 == now.test_sha256) return;
  throw UsageError(fmt::format(
      "--data {} is not the data of {}: its {} examples are {}, those of the run {}; accepted: the same data "
      "at any "
      "path, or --init {} for a new run with other data",
      o.data, o.resume, train ? "training" : "test",
      train ? in_words(now.train_size, now.train_sha256) : in_words(now.test_size, now.test_sha256),
      train ? in_words(before.train_size, before.train_sha256)
            : in_words(before.test_size, before.test_sha256),
      shell_word(o.resume)));
}

void check_same_data(const Group& world, const DataRecord& own) {
  std::string mine = own.train_sha256 + own.test_sha256;
  const std::size_t length = mine.size();  // the same everywhere
  std::string all(length * static_cast<std::size_t>(world.size()), '\0');
  world.all_gather({mine.data(), mine.size(), DType::u8}, {all.data(), all.size(), DType::u8});
  for (int rank = 1; rank < world.size(); ++rank) {
    const std::string theirs = all.substr(static_cast<std::size_t>(rank) * length, length);
    if (theirs != all.substr(0, length))
      throw UsageError(
          fmt::format("rank {} reads other data than rank 0 (SHA-256 {:.12}… and {:.12}…); accepted: the "
                      "same files on every machine",
                      rank, theirs, all));
  }
}

}  // namespace lockstep::cli
