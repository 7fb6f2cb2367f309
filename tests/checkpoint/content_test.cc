#include "checkpoint/inspect/content.h"

#include <nlohmann/json.hpp>

#include "checkpoint/before_stat.h"
#include "checkpoint/inspect/listing.h"
#include "checkpoint/inspect/report.h"
#include "checkpoint/sample_checkpoint.h"
#include "checkpoint/temp_folder.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::bf16_run;
using test::message_of;
using test::TempFolder;
using test::tensor_file;
using test::write_sample;

std::vector<std::int64_t> steps_at(const fs::path& path) {
  std::vector<std::int64_t> steps;
  for (const ListedCheckpoint& one : list_checkpoints_at(path)) steps.push_back(one.step.value_or(-1));
  return steps;
}

std::map<std::string, TensorPart> parts_of(const CheckpointContent& content) {
  std::map<std::string, TensorPart> parts;
  for (const ContentFile& file : content.files)
    for (const ContentTensor& tensor : file.tensors) parts[tensor.entry.name] = tensor.part;
  return parts;
}

TEST(ListCheckpoints, OfARunOfAFolderAndOfOne) {
  const TempFolder temp;
  const fs::path run = temp.path() / "run";
  for (const int step : {20, 100, 3}) write_sample(run / "checkpoints", step, bf16_run());
  const std::vector<std::int64_t> all{3, 20, 100};
  EXPECT_EQ(steps_at(run), all);
  EXPECT_EQ(steps_at(run / "checkpoints"), all);
  EXPECT_EQ(steps_at(run / "checkpoints" / ""), all);
  EXPECT_EQ(steps_at(run / "checkpoints" / "step-00000020"), (std::vector<std::int64_t>{20}));
  EXPECT_EQ(steps_at(run / "checkpoints" / "step-00000020" / ""), (std::vector<std::int64_t>{20}));
  fs::rename(run / "checkpoints" / "step-00000020", run / "best");  // its manifest knows
  EXPECT_EQ(steps_at(run / "best"), (std::vector<std::int64_t>{20}));
}

TEST(ListCheckpoints, CountsWhatLiesThere) {
  const TempFolder temp;
  const fs::path folder = write_sample(temp.path(), 3, {{"a", "12345"}, {"b", "123"}});
  const auto listed = list_checkpoints_at(temp.path());
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].files, 2u);
  EXPECT_EQ(listed[0].bytes, 8 + fs::file_size(folder / "manifest.json"));
  EXPECT_EQ(total_bytes(listed), listed[0].bytes);
  EXPECT_LE(std::abs(std::difftime(listed[0].written, std::time(nullptr))), 60);
}

TEST(ListCheckpoints, SaysWhatIsAcceptedWhereThereIsNone) {
  const TempFolder temp;
  EXPECT_NE(message_of<UsageError>([&] { list_checkpoints_at(temp.path() / "none"); }).find("no such folder"),
            std::string::npos);
  EXPECT_NE(message_of<UsageError>([&] { list_checkpoints_at(temp.path()); }).find("accepted: a checkpoint"),
            std::string::npos);
}

TEST(CheckpointContent, TellsWhatEachTensorIsFor) {
  const TempFolder temp;
  auto files = bf16_run();
  files["scaler.safetensors"] = tensor_file({{"scale", FileDType::f32, {}, 's'}});
  const CheckpointContent content = read_content(write_sample(temp.path(), 3, files));
  EXPECT_EQ(parts_of(content), (std::map<std::string, TensorPart>{{"a.weight", TensorPart::parameter},
                                                                  {"b.bias", TensorPart::parameter},
                                                                  {"norm.mean", TensorPart::buffer},
                                                                  {"master/a.weight", TensorPart::master},
                                                                  {"master/b.bias", TensorPart::master},
                                                                  {"exp_avg/a.weight", TensorPart::optimizer},
                                                                  {"exp_avg/b.bias", TensorPart::optimizer},
                                                                  {"step/a.weight", TensorPart::optimizer},
                                                                  {"step/b.bias", TensorPart::optimizer},
                                                                  {"scale", TensorPart::other}}));
  const auto totals = content.totals();
  EXPECT_EQ(totals.at(TensorPart::parameter).elements, 16u);
  EXPECT_EQ(totals.at(TensorPart::parameter).bytes, 32u);
  EXPECT_EQ(totals.at(TensorPart::master).bytes, 64u);
  EXPECT_EQ(totals.at(TensorPart::optimizer).tensors, 4u);
  EXPECT_EQ(totals.at(TensorPart::optimizer).bytes, 64u + 16);
  EXPECT_EQ(totals.at(TensorPart::buffer).elements, 5u);
  EXPECT_FALSE(totals.contains(TensorPart::weight));
}

TEST(CheckpointContent, DoesNotGuessWithoutTheOptimizersTensors) {
  const TempFolder temp;
  auto files = bf16_run();
  files.erase("optimizer.safetensors");
  files["optimizer.pt"] = "what libtorch's optimizers write";
  const CheckpointContent content = read_content(write_sample(temp.path(), 3, files));
  EXPECT_EQ(content.totals().at(TensorPart::weight).tensors, 3u);
  EXPECT_EQ(content.totals().size(), 1u);
}

TEST(CheckpointContent, ReportsTheNewestInFull) {
  const TempFolder temp;
  for (const int step : {5, 9}) write_sample(temp.path(), step, bf16_run());
  std::string text;
  report_content(temp.path(), ReportForm::plain, [&](const std::string& lines) { text += lines; });
  for (const char* words :
       {"\nstep-00000005     5      3  ", "\na.weight          BF16   [4, 3]  24 B  parameter\n",
        "\nmaster           2        16   64 B\n", "\nall              9"})
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in\n" << text;
  std::vector<nlohmann::json> lines;
  report_content(temp.path(), ReportForm::json,
                 [&](const std::string& line) { lines.push_back(nlohmann::json::parse(line)); });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_FALSE(lines[0].contains("content"));
  EXPECT_EQ(lines[1]["step"], 9);
  EXPECT_EQ(lines[1]["content"]["tensors"].size(), 9u);
  EXPECT_EQ(lines[1]["content"]["totals"]["buffer"]["bytes"], 20);
}

TEST(CheckpointContent, TheNextIsReportedWhereTheNewestIsRemovedMeanwhile) {
  for (const int stat : {1, 2, 3}) {  // as it is found, as it is listed, and as it is read
    const TempFolder temp;
    const fs::path first = write_sample(temp.path(), 5, bf16_run());
    const test::BeforeStat goes_on(
        first,
        [&] {
          write_sample(temp.path(), 9, bf16_run());
          fs::remove_all(first);
        },
        stat);
    std::vector<nlohmann::json> lines;
    report_content(temp.path(), ReportForm::json,
                   [&](const std::string& line) { lines.push_back(nlohmann::json::parse(line)); });
    ASSERT_EQ(lines.size(), 1u) << stat;
    EXPECT_EQ(lines[0]["step"], 9);
    EXPECT_EQ(lines[0]["content"]["tensors"].size(), 9u);
  }
}

TEST(CheckpointContent, ANameFromAFileDoesNoHarm) {
  const TempFolder temp;
  write_sample(temp.path(), 3,
               {{"model.safetensors", tensor_file({{"a\n\033[2Jb", FileDType::f32, {1}, 'x'}})}});
  std::string text;
  report_content(temp.path(), ReportForm::plain, [&](const std::string& lines) { text += lines; });
  EXPECT_NE(text.find("a \\x1b[2Jb"), std::string::npos) << text;
}

TEST(CheckpointContent, WhatCannotBeReadIsNamedBehindTheOthers) {
  const TempFolder temp;
  write_sample(temp.path(), 5, bf16_run());
  const fs::path newest = write_sample(temp.path(), 9, bf16_run());
  int lines = 0;
  const auto count = [&](const std::string&) { ++lines; };
  test::put(newest / "model.safetensors", "short");
  EXPECT_NE(message_of<SystemError>([&] {
              report_content(temp.path(), ReportForm::json, count);
            }).find("step-00000009/model.safetensors: it is no safetensors file"),
            std::string::npos);
  EXPECT_EQ(lines, 1);
  test::put(newest / "manifest.json", "{}");
  EXPECT_NE(message_of<SystemError>([&] {
              report_content(newest, ReportForm::json, count);
            }).find("step-00000009/manifest.json is cut off or altered"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
