// Checkpoints whose tensors several workers have written, each its runs, and readers that cut them otherwise.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/inspect/check.h"
#include "checkpoint/inspect/content.h"
#include "checkpoint/inspect/export.h"
#include "checkpoint/part_file.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/sample_checkpoint.h"
#include "checkpoint/stored_tensors.h"
#include "checkpoint/temp_folder.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::flip_bit;
using test::message_of;
using test::TempFolder;

constexpr const char* kSet = "model.safetensors";

class CheckpointParts : public ::testing::Test {
 protected:
  // Three f32 tensors: one of more than two pieces, one of none, one of one element.
  static constexpr std::uint64_t kLarge = 2 * (kPieceBytes / 4) + 1001;

  static std::vector<float> values(const std::string& name, std::uint64_t begin, std::uint64_t end) {
    std::vector<float> some(end - begin);
    std::iota(some.begin(), some.end(), static_cast<float>(begin) + (name == "one" ? 0.5F : 0));
    return some;
  }
  static RunForm run(const std::string& name, std::uint64_t begin, std::uint64_t end) {
    const std::vector<std::int64_t> shape = name == "large"
                                                ? std::vector<std::int64_t>{static_cast<std::int64_t>(kLarge)}
                                            : name == "none" ? std::vector<std::int64_t>{0, 3}
                                                             : std::vector<std::int64_t>{};
    return {.name = name, .dtype = FileDType::f32, .shape = shape, .begin = begin, .end = end};
  }
  static std::string write_part(const fs::path& folder, int rank, int ranks,
                                const std::vector<RunForm>& runs) {
    PartFile part(folder, part_name(kSet, rank, ranks), kSet, runs, {{"format", "pt"}});
    for (const std::size_t i : part.order()) {
      const auto some = values(runs[i].name, runs[i].begin, runs[i].end);
      const auto bytes = std::as_bytes(std::span(some));
      part.write(bytes.first(bytes.size() / 3));  // in pieces of any size
      part.write(bytes.subspan(bytes.size() / 3));
    }
    return compose_manifest(part.finish());
  }
  // One checkpoint of step 7 by as many writers as there are cuts of "large", and one more.
  fs::path write(const std::vector<std::uint64_t>& cuts) {
    CheckpointDraft draft = CheckpointStore(temp_.path()).begin(7);
    const int ranks = static_cast<int>(cuts.size()) + 1;
    std::vector<std::string> notes;
    std::uint64_t begin = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::uint64_t end = rank + 1 == ranks ? kLarge : cuts[static_cast<std::size_t>(rank)];
      std::vector<RunForm> runs = {run("large", begin, end)};
      if (rank == ranks - 1) runs.push_back(run("one", 0, 1));
      if (rank == 0) runs.push_back(run("none", 0, 0));
      notes.push_back(write_part(draft.folder(), rank, ranks, runs));
      begin = end;
    }
    write_file(draft.folder() / "state.json", "{}\n");
    return draft.publish(notes);
  }
  static std::vector<float> read(const StoredTensors& stored, const std::string& name, std::uint64_t begin,
                                 std::uint64_t end) {
    std::vector<float> some(end - begin);
    stored.read(name, begin, end, std::as_writable_bytes(std::span(some)));
    return some;
  }

  TempFolder temp_;
};

TEST_F(CheckpointParts, AreReadInAnyOtherCut) {
  for (const std::vector<std::uint64_t>& cuts :
       {std::vector<std::uint64_t>{}, {1}, {kLarge}, {0, 1'000'000}, {5, 5, kLarge - 1}}) {
    const fs::path checkpoint = write(cuts);
    EXPECT_NO_THROW(verify_checkpoint(checkpoint));
    const StoredTensors stored(checkpoint, kSet);
    EXPECT_EQ(stored.forms().size(), 3u);
    EXPECT_EQ(stored.metadata().at("format"), "pt");
    EXPECT_TRUE(stored.in_parts());
    for (const auto& [begin, end] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
             {0, kLarge}, {0, 0}, {0, 1}, {kLarge - 1, kLarge}, {999'999, 1'100'000}})
      EXPECT_EQ(read(stored, "large", begin, end), values("large", begin, end)) << begin << " to " << end;
    EXPECT_EQ(read(stored, "one", 0, 1), values("one", 0, 1));
    EXPECT_TRUE(read(stored, "none", 0, 0).empty());
  }
}

TEST_F(CheckpointParts, EachByteIsReadOnceAndLittleMoreOfARun) {
  const fs::path checkpoint = write({kLarge / 2});
  const StoredTensors first(checkpoint, kSet), second(checkpoint, kSet);
  read(first, "large", 0, kLarge / 2);
  read(second, "large", kLarge / 2, kLarge);
  EXPECT_EQ(first.bytes_read() + second.bytes_read(), 4 * kLarge);
  const StoredTensors some(checkpoint, kSet);
  read(some, "large", 10, 20);
  EXPECT_EQ(some.bytes_read(), kPieceBytes);
}

TEST_F(CheckpointParts, AFlippedBitIsFoundAndNamed) {
  const fs::path checkpoint = write({kLarge / 2});
  const fs::path file = checkpoint / part_name(kSet, 1, 2);
  const auto fault = [&] { return find_damage(checkpoint); };
  flip_bit(file, -1 - 4);  // "one" is the last, and has one element
  EXPECT_NE(fault().find("model-00001-of-00002.safetensors was altered (the SHA-256 of elements " +
                         std::to_string(kLarge / 2 + kPieceBytes / 4) + " to "),
            std::string::npos)
      << fault();
  EXPECT_NE(fault().find(" of large differs)"), std::string::npos) << fault();
  // Who reads it is told, who reads other elements is not.
  const StoredTensors stored(checkpoint, kSet);
  EXPECT_NO_THROW(read(stored, "large", 0, kLarge / 2 + 1));
  const std::string said = message_of<DamagedCheckpoint>([&] { read(stored, "large", kLarge - 1, kLarge); });
  EXPECT_EQ(said.find("checkpoint step-00000007 is damaged: "), 0u) << said;
  EXPECT_NE(said.find("of \"large\" differs"), std::string::npos) << said;
  flip_bit(file, -1 - 4);
  EXPECT_EQ(fault(), "");
  flip_bit(file, -1);
  EXPECT_NE(fault().find("elements 0 to 1 of one differs"), std::string::npos) << fault();
  flip_bit(file, -1);
  flip_bit(file, 20);
  EXPECT_NE(fault().find("of its header differs"), std::string::npos) << fault();
  EXPECT_THROW(check_frame(checkpoint), DamagedCheckpoint);
}

TEST_F(CheckpointParts, EveryByteOfThemIsUnderSomeHash) {
  CheckpointDraft draft = CheckpointStore(temp_.path()).begin(7);
  const std::string note = write_part(draft.folder(), 0, 1, {run("one", 0, 1), run("none", 0, 0)});
  const fs::path checkpoint = draft.publish(std::vector{note});
  const fs::path file = checkpoint / part_name(kSet, 0, 1);
  for (std::uintmax_t at = 0; at < fs::file_size(file); ++at) {
    flip_bit(file, static_cast<std::ptrdiff_t>(at));
    EXPECT_NE(find_damage(checkpoint), "") << at;
    flip_bit(file, static_cast<std::ptrdiff_t>(at));
  }
}

TEST_F(CheckpointParts, ThatAreNotTheWholeAreNoCheckpoint) {
  const auto refusal = [&](const std::vector<std::vector<RunForm>>& parts) {
    return message_of<UsageError>([&] {
      CheckpointDraft draft = CheckpointStore(temp_.path()).begin(7);
      std::vector<std::string> notes;
      for (std::size_t i = 0; i < parts.size(); ++i)
        notes.push_back(write_part(draft.folder(), static_cast<int>(i), 2, parts[i]));
      draft.publish(notes);
    });
  };
  EXPECT_EQ(refusal({{run("large", 0, 10)}, {run("large", 12, kLarge)}}),
            "the checkpoint has tensor \"large\" of model.safetensors with element 10 in none of its runs");
  EXPECT_EQ(refusal({{run("large", 0, 10)}, {run("large", 9, kLarge)}}),
            "the checkpoint has tensor \"large\" of model.safetensors with element 9 in two of its runs");
  EXPECT_EQ(refusal({{run("large", 0, 10)}}),
            "the checkpoint has tensor \"large\" of model.safetensors with element 10 in none of its runs");
  EXPECT_TRUE(fs::is_empty(temp_.path()));
}

TEST_F(CheckpointParts, AreOneFileWhenExported) {
  write({3, kLarge - 3});
  const fs::path out = temp_.path() / "all.safetensors";
  const ExportReport report = export_weights(temp_.path(), {.out = out});
  EXPECT_EQ(report.tensors, 3u);
  InputFile input(out);
  const SafetensorsHeader header = read_header(input);
  std::map<std::string, std::vector<float>> found;
  for (const TensorEntry& entry : header.tensors) {
    auto& some = found[entry.name] = std::vector<float>((entry.end - entry.begin) / 4);
    input.read_all(std::as_writable_bytes(std::span(some)));
  }
  EXPECT_EQ(found["large"], values("large", 0, kLarge));
  EXPECT_EQ(found["one"], values("one", 0, 1));
  const CheckpointContent content = read_content(temp_.path() / "step-00000007");
  ASSERT_EQ(content.sets.size(), 1u);
  EXPECT_EQ(content.sets[0].parts, 3u);
  EXPECT_EQ(content.totals().at(TensorPart::weight).bytes, 4 * (kLarge + 1));
  EXPECT_EQ(nlohmann::json(to_json(content))["tensors"][0]["files"], 3);
}

// An entry of the manifest can't be moved to other elements or another file without being seen.
TEST_F(CheckpointParts, AManifestThatContradictsItselfIsRefused) {
  const fs::path checkpoint = write({kLarge / 2});
  const Manifest good = read_manifest(checkpoint);
  const auto refusal = [&](const std::function<void(Manifest&)>& change) {
    Manifest manifest = good;
    change(manifest);
    return message_of<UsageError>([&] { parse_manifest(compose_manifest(manifest)); });
  };
  const auto large = [](Manifest& m) -> StoredTensor& { return m.sets.at(kSet).tensors.at("large"); };
  EXPECT_NE(refusal([&](Manifest& m) { large(m).runs.pop_back(); }).find("in no run"), std::string::npos);
  EXPECT_NE(refusal([&](Manifest& m) { large(m).runs[0].at -= 4; }).find("in no run, or in two"),
            std::string::npos);
  EXPECT_NE(refusal([&](Manifest& m) { large(m).runs[0].file = "other"; }).find("no file has room"),
            std::string::npos);
  EXPECT_NE(refusal([&](Manifest& m) { large(m).runs[0].end = ~0ULL; }).find("does not fit"),
            std::string::npos);
  EXPECT_NE(refusal([&](Manifest& m) { large(m).runs[0].sha256.pop_back(); }).find("does not fit"),
            std::string::npos);
  EXPECT_NE(refusal([&](Manifest& m) { large(m).shape = {-1}; }).find("negative"), std::string::npos);
  EXPECT_NE(refusal([&](Manifest& m) { m.files.begin()->second.head = 0; }).find("no file has room"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
