#include "checkpoint/inspect/export.h"

#include "base/synced.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/sample_checkpoint.h"
#include "checkpoint/stored_tensors.h"
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

class ExportWeights : public ::testing::Test {
 protected:
  // "name dtype fill" of each tensor, in the order of their bytes.
  std::vector<std::string> exported() const {
    std::vector<std::string> found;
    const std::string file = test::bytes_of(out_);
    const SafetensorsHeader header = this->header();
    const std::size_t data = file.size() - (header.tensors.empty() ? 0 : header.tensors.back().end);
    for (const TensorEntry& entry : header.tensors) {
      const std::string bytes = file.substr(data + entry.begin, entry.end - entry.begin);
      EXPECT_EQ(bytes, std::string(entry.end - entry.begin, bytes.at(0))) << entry.name;
      found.push_back(entry.name + " " + to_string(entry.dtype) + " " + bytes.at(0));
    }
    return found;
  }
  SafetensorsHeader header() const {
    InputFile input(out_);
    return read_header(input);
  }
  std::string refusal(ExportOptions options) const {
    return message_of<UsageError>([&] { export_weights(temp_.path(), options); });
  }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(temp_.path()), fs::directory_iterator());
  }

  TempFolder temp_;
  fs::path run_ = temp_.path() / "checkpoints";
  fs::path out_ = temp_.path() / "weights.safetensors";
};

TEST_F(ExportWeights, AsTheModelHasThem) {
  write_sample(run_, 5, {{"model.safetensors", "an older one"}});
  const fs::path checkpoint = write_sample(run_, 9, bf16_run());
  std::uint64_t written = 0, announced = 0;
  const ExportReport report =
      export_weights(temp_.path(), {.out = out_}, [&](std::uint64_t bytes, std::uint64_t total) {
        written += bytes;
        announced = total;
      });
  EXPECT_EQ(exported(), (std::vector<std::string>{"norm.mean F32 n", "a.weight BF16 w", "b.bias BF16 b"}));
  EXPECT_EQ(header().metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"step", "9"}}));
  EXPECT_EQ(report.checkpoint, checkpoint);
  EXPECT_EQ(report.step, 9);
  EXPECT_EQ(report.tensors, 3u);
  EXPECT_EQ(report.masters, 0u);
  EXPECT_EQ(report.bytes, fs::file_size(out_));
  EXPECT_EQ(written, report.bytes);
  EXPECT_EQ(announced, report.bytes);
}

TEST_F(ExportWeights, MasterWeightsWhereThereAreAny) {
  write_sample(run_, 9, bf16_run());
  const ExportReport report = export_weights(temp_.path(), {.out = out_, .weights = ExportedWeights::master});
  EXPECT_EQ(exported(), (std::vector<std::string>{"a.weight F32 W", "b.bias F32 B", "norm.mean F32 n"}));
  EXPECT_EQ(report.masters, 2u);
}

TEST_F(ExportWeights, MasterWeightsThatThereAreNot) {
  auto files = bf16_run();
  files.erase("optimizer.safetensors");
  write_sample(run_, 9, files);
  const ExportOptions options{.out = out_, .weights = ExportedWeights::master};
  EXPECT_NE(refusal(options).find("no master weights"), std::string::npos);
  EXPECT_FALSE(fs::exists(out_));
  // What is f32 in the model is what the optimizer updates.
  write_sample(run_, 10, {{"model.safetensors", tensor_file({{"a", FileDType::f32, {2}, 'a'}})}});
  EXPECT_EQ(export_weights(temp_.path(), options).masters, 0u);
  EXPECT_EQ(exported(), (std::vector<std::string>{"a F32 a"}));
}

TEST_F(ExportWeights, TensorsLargerThanAPiece) {
  write_sample(run_, 9,
               {{"model.safetensors", tensor_file({{"none", FileDType::f32, {0, 4}, 'x'},
                                                   {"large", FileDType::u8, {(5 << 20) / 2}, 'l'}})}});
  export_weights(temp_.path(), {.out = out_});
  const SafetensorsHeader header = this->header();
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].shape, (std::vector<std::int64_t>{0, 4}));
  EXPECT_TRUE(test::bytes_of(out_).ends_with(std::string((5 << 20) / 2, 'l')));
  EXPECT_EQ(header.tensors[1].end, std::uint64_t{(5 << 20) / 2});
  // It was read piece by piece, too.
  std::size_t largest = 0;
  StoredTensors(run_ / "step-00000009", "model.safetensors")
      .read_whole("large",
                  [&](std::span<const std::byte> piece) { largest = std::max(largest, piece.size()); });
  EXPECT_LE(largest, 1u << 20);
}

TEST_F(ExportWeights, WritesOverNothingUnlessTold) {
  const fs::path checkpoint = write_sample(run_, 9, bf16_run());
  test::put(out_, "mine");
  EXPECT_NE(refusal({.out = out_}).find("--overwrite"), std::string::npos);
  EXPECT_EQ(test::bytes_of(out_), "mine");
  export_weights(temp_.path(), {.out = out_, .existing = Existing::replace});
  EXPECT_EQ(exported().size(), 3u);
  EXPECT_EQ(entries(), 2);  // the run's checkpoints and the file, nothing half made

  EXPECT_NE(refusal({.out = {}}).find("--out is needed"), std::string::npos);
  EXPECT_NE(refusal({.out = temp_.path() / "none" / "x"}).find("there is no folder"), std::string::npos);
  EXPECT_NE(refusal({.out = run_, .existing = Existing::replace}).find("is a folder"), std::string::npos);
  EXPECT_NE(refusal({.out = checkpoint / "model.safetensors", .existing = Existing::replace})
                .find("lies in a checkpoint"),
            std::string::npos);
  EXPECT_NO_THROW(verify_checkpoint(checkpoint));
}

TEST_F(ExportWeights, NothingOfADamagedOne) {
  write_sample(run_, 5, bf16_run());
  const fs::path newest = write_sample(run_, 9, bf16_run());
  test::flip_bit(newest / "model.safetensors", -1);
  const std::string said = message_of<SystemError>([&] { export_weights(temp_.path(), {.out = out_}); });
  EXPECT_NE(said.find("step-00000009 is damaged"), std::string::npos) << said;
  EXPECT_NE(said.find("step-00000005"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(ExportWeights, WhatIsNoModelIsRefused) {
  write_sample(run_, 9, {{"a.bin", "x"}, {"b.bin", "x"}});
  EXPECT_NE(refusal({.out = out_}).find("has no model.safetensors, but a.bin, b.bin"), std::string::npos);
  auto files = bf16_run();
  files["optimizer.safetensors"] = tensor_file({{"master/a.weight", FileDType::f32, {3, 4}, 'W'}});
  write_sample(run_, 10, files);
  EXPECT_NE(message_of<SystemError>([&] {
              export_weights(temp_.path(), {.out = out_, .weights = ExportedWeights::master});
            }).find("not of one model"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(out_));
}

// Who has them may remove the run: their name has to be on disk, too.
TEST_F(ExportWeights, TheirNameSurvivesAPowerCut) {
  write_sample(run_, 9, bf16_run());
  for (const Existing existing : {Existing::refuse, Existing::replace}) {
    test::synced().clear();
    export_weights(temp_.path(), {.out = out_, .existing = existing});
    EXPECT_TRUE(test::synced().contains(temp_.path().string()));
  }
}

}  // namespace
}  // namespace lockstep
