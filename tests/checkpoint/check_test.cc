#include "checkpoint/inspect/check.h"

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "checkpoint/before_stat.h"
#include "checkpoint/inspect/report.h"
#include "checkpoint/sample_checkpoint.h"
#include "checkpoint/temp_folder.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::bf16_run;
using test::flip_bit;
using test::message_of;
using test::put;
using test::TempFolder;
using test::tensor_file;
using test::write_sample;

class CheckCheckpoint : public ::testing::Test {
 protected:
  // Of the only checkpoint.
  CheckReport check() const {
    const auto report = check_checkpoint(list_checkpoints_at(folder_).front());
    EXPECT_TRUE(report);
    return report.value_or(CheckReport{});
  }
  // "file: what" of its only fault.
  std::string fault() const {
    const CheckReport report = check();
    EXPECT_EQ(report.condition, Condition::damaged);
    EXPECT_EQ(report.faults.size(), 1u);
    return report.faults.empty() ? "" : report.faults[0].file + ": " + report.faults[0].what;
  }

  TempFolder temp_;
  fs::path folder_ = temp_.path() / "step-00000007";
};

TEST_F(CheckCheckpoint, WholeOnesAreReadPieceByPiece) {
  auto files = bf16_run();
  files["large.safetensors"] = tensor_file({{"x", FileDType::u8, {5 << 20}, 'x'}});
  write_sample(temp_.path(), 7, files);
  std::uint64_t read = 0, expected = 0, largest = 0;
  for (const auto& [name, bytes] : files) expected += bytes.size();
  const auto report = check_checkpoint(list_checkpoints_at(folder_).front(), [&](std::uint64_t bytes) {
    read += bytes;
    largest = std::max(largest, bytes);
  });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->condition, Condition::whole);
  EXPECT_EQ(report->files, 4u);
  EXPECT_EQ(report->bytes, expected);
  EXPECT_EQ(read, expected);
  EXPECT_LE(largest, 1u << 20);
  EXPECT_EQ(describe(*report), "step-00000007  whole    4 files, 5.0 MiB\n");
}

TEST_F(CheckCheckpoint, AFlippedBitIsSeenAndWhereItIs) {
  write_sample(temp_.path(), 7, bf16_run());
  flip_bit(folder_ / "model.safetensors", -1);
  EXPECT_EQ(fault(),
            "model.safetensors: was altered (its SHA-256 differs); its header still fits, which "
            "of its 3 tensors changed can't be told");
  flip_bit(folder_ / "model.safetensors", -1);
  flip_bit(folder_ / "model.safetensors", 8);  // the header's first brace
  EXPECT_EQ(
      fault(),
      "model.safetensors: was altered (its SHA-256 differs); it is no safetensors file: no JSON header");
  flip_bit(folder_ / "model.safetensors", 8);
  EXPECT_EQ(check().condition, Condition::whole);
  flip_bit(folder_ / "state.json", 0);
  EXPECT_EQ(fault(), "state.json: was altered (its SHA-256 differs)");
}

TEST_F(CheckCheckpoint, WhatIsCutOrMissingIsNamedAndAllOfIt) {
  write_sample(temp_.path(), 7, bf16_run());
  const std::string whole = test::bytes_of(folder_ / "optimizer.safetensors");
  put(folder_ / "optimizer.safetensors", whole.substr(0, whole.size() - 1));
  EXPECT_EQ(fault(), "optimizer.safetensors: has " + std::to_string(whole.size() - 1) + " bytes instead of " +
                         std::to_string(whole.size()));
  fs::remove(folder_ / "state.json");
  const CheckReport report = check();
  ASSERT_EQ(report.faults.size(), 2u);
  EXPECT_EQ(report.faults[1].file, "state.json");
  EXPECT_EQ(report.faults[1].what, "is not there");
  EXPECT_EQ(describe(report), "step-00000007  damaged  optimizer.safetensors " + report.faults[0].what +
                                  "; state.json is not there\n");
}

TEST_F(CheckCheckpoint, AManifestThatDoesNotHold) {
  write_sample(temp_.path(), 7, bf16_run());
  const std::string manifest = test::bytes_of(folder_ / "manifest.json");
  put(folder_ / "manifest.json", manifest + " ");
  EXPECT_EQ(fault().find("manifest.json: was altered"), 0u) << fault();
  put(folder_ / "manifest.json", manifest.substr(0, 20));
  EXPECT_EQ(fault().find("manifest.json: is cut off"), 0u) << fault();
  fs::remove(folder_ / "manifest.json");
  EXPECT_EQ(fault(), "manifest.json: is not there");
  put(folder_ / "manifest.json", manifest);
  fs::rename(folder_, temp_.path() / "step-00000008");
  folder_ = temp_.path() / "step-00000008";
  EXPECT_EQ(fault(), "manifest.json: is of step 7");
}

TEST_F(CheckCheckpoint, AHeaderThatNeverFittedIsDamageThoughItsHashIsRight) {
  const std::string fits = tensor_file({{"x", FileDType::f32, {2}, 'x'}});
  std::string length = fits, offsets = fits;
  length[7] = '\x7f';
  offsets.replace(offsets.find("[0,8]"), 5, "[4,8]");
  for (const auto& [bytes, words] :
       {std::pair(length, "its header would have"), std::pair(offsets, "lies at bytes 4 to 8"),
        std::pair(std::string("short"), "it has 5 bytes"),
        std::pair(fits + "more", "bytes after its last tensor")}) {
    write_sample(temp_.path(), 7, {{"model.safetensors", bytes}});
    const std::string said = fault();
    EXPECT_EQ(said.find("model.safetensors: is as it was written, but "), 0u) << said;
    EXPECT_NE(said.find(words), std::string::npos) << said;
  }
}

// A process without free descriptors stands for one without the right to read: root, who may run this, has
// it.
TEST_F(CheckCheckpoint, WhatMayNotBeReadIsNotCalledDamaged) {
  write_sample(temp_.path(), 7, bf16_run());
  const auto listed = list_checkpoints_at(folder_).front();
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  const auto report = check_checkpoint(listed);
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->condition, Condition::unreadable);
  EXPECT_NE(describe(*report).find("Too many open files"), std::string::npos) << describe(*report);
}

TEST_F(CheckCheckpoint, OneThatTheRunRemovesMeanwhileIsNotDamaged) {
  write_sample(temp_.path(), 7, bf16_run());
  const auto report =
      check_checkpoint(list_checkpoints_at(folder_).front(), [&](std::uint64_t) { fs::remove_all(folder_); });
  EXPECT_FALSE(report);
}

TEST_F(CheckCheckpoint, NorIsOneThatIsGoneBeforeItIsLookedAt) {
  write_sample(temp_.path(), 7, bf16_run());
  const auto listed = list_checkpoints_at(folder_).front();
  fs::remove_all(folder_);
  EXPECT_FALSE(check_checkpoint(listed));
}

TEST_F(CheckCheckpoint, WhereAllWereRemovedTheNextIsReported) {
  write_sample(temp_.path(), 7, bf16_run());
  const auto go_on = [&] {
    write_sample(temp_.path(), 9, bf16_run());
    fs::remove_all(folder_);
  };
  for (const int stat : {1, 2, 3}) {  // as it is found, as it is listed, and as it is checked
    fs::remove_all(temp_.path() / "step-00000009");
    if (stat > 1) write_sample(temp_.path(), 7, bf16_run());
    const test::BeforeStat removed(folder_, go_on, stat);
    std::string text;
    report_condition(temp_.path(), ReportForm::plain, [&](const std::string& line) { text += line; });
    EXPECT_EQ(text.find("step-00000009  whole"), 0u) << text;
  }
}

TEST_F(CheckCheckpoint, EveryOneIsReportedBeforeTheFailure) {
  for (const int step : {5, 7, 9}) write_sample(temp_.path(), step, bf16_run());
  flip_bit(folder_ / "model.safetensors", -1);
  std::vector<nlohmann::json> lines;
  const std::string failure = message_of<SystemError>([&] {
    report_condition(temp_.path(), ReportForm::json,
                     [&](const std::string& line) { lines.push_back(nlohmann::json::parse(line)); });
  });
  EXPECT_EQ(failure, "1 of 3 checkpoints is not whole");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["condition"], "whole");
  EXPECT_EQ(lines[1]["condition"], "damaged");
  EXPECT_EQ(lines[1]["step"], 7);
  EXPECT_EQ(lines[1]["faults"][0]["file"], "model.safetensors");
  EXPECT_EQ(lines[2]["step"], 9);
}

}  // namespace
}  // namespace lockstep
