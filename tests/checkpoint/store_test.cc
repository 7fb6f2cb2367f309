#include "lockstep/checkpoint/store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/stranger_lock.h"
#include "checkpoint/before_stat.h"
#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/staging.h"
#include "checkpoint/temp_folder.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/sha256.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::TempFolder;

void fill_with(const fs::path& folder, const std::string& text) {
  write_file(folder / "model.safetensors", text + " weights");
  write_file(folder / "state.json", text + " state");
}
auto filler(std::string text) {
  return [text](const fs::path& folder) { fill_with(folder, text); };
}
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
std::string content(const fs::path& file) { return read_text(file, 1 << 20); }
void overwrite(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::trunc) << text;
}

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_text(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_text("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const TempFolder temp;
  write_file(temp.path() / "x", std::string(3'000'000, 'a'));
  EXPECT_EQ(sha256_file(temp.path() / "x"), sha256_text(std::string(3'000'000, 'a')));
  EXPECT_NE(message_of<SystemError>([&] { sha256_file(temp.path() / "y"); }).find("/y: No such file"),
            std::string::npos);
}

TEST(Store, AStrangersLockOnTheFolderKeepsNobodyFromWriting) {
  if (::getuid() != 0) GTEST_SKIP() << "only root may make a process of another user";
  const TempFolder temp;
  ASSERT_EQ(::chmod(temp.path().c_str(), 0755), 0);
  const test::StrangersLock stranger(temp.path(), test::StrangersWay::flock);
  const auto started = Clock::now();
  EXPECT_NO_THROW(CheckpointStore(temp.path()).write(1, filler("one")));
  EXPECT_LT(Clock::now() - started, std::chrono::seconds(20)) << "it waited for the stranger";
  EXPECT_EQ(names_in(temp.path()), std::vector<std::string>{"step-00000001"});
}

TEST(Store, ASecondWriterIsToldOfTheFirst) {
  const TempFolder temp;
  const CheckpointDraft first = CheckpointStore(temp.path()).begin(1);
  const std::string said =
      message_of<SystemError>([&] { const WriterLock second(temp.path(), std::chrono::milliseconds(50)); });
  const std::string named = "are being written by process " + std::to_string(::getpid()) + " on ";
  EXPECT_NE(said.find(temp.path().string() + " " + named), std::string::npos) << said;
  EXPECT_NE(said.find("0.05 s; accepted: another folder"), std::string::npos) << said;
  EXPECT_TRUE(CheckpointStore(temp.path()).list().empty());
}

TEST(Store, PublishesAndKeepsTheNewest) {
  const TempFolder temp;
  CheckpointStore store(temp.path() / "run" / "checkpoints", 2);
  EXPECT_TRUE(store.list().empty());
  for (const int step : {5, 10, 15}) {
    const auto folder = store.write(step, filler(std::to_string(step)));
    EXPECT_NO_THROW(verify_checkpoint(folder));
    EXPECT_EQ(checkpoint_step(folder), step);
  }
  EXPECT_EQ(names_in(temp.path() / "run" / "checkpoints"),
            (std::vector<std::string>{"step-00000010", "step-00000015"}));
  EXPECT_EQ(content(store.list().back() / "state.json"), "15 state");
}

TEST(Store, KeepsAllWhenAsked) {
  const TempFolder temp;
  CheckpointStore store(temp.path(), 0);
  for (int step = 0; step < 5; ++step) store.write(step, filler("x"));
  EXPECT_EQ(store.list().size(), 5u);
  EXPECT_THROW(CheckpointStore(temp.path(), -1), UsageError);
  EXPECT_THROW(store.write(-1, filler("x")), UsageError);
}

TEST(Store, ReplacesTheSameStep) {
  const TempFolder temp;
  CheckpointStore store(temp.path());
  store.write(7, filler("old"));
  const auto folder = store.write(7, [](const fs::path& staging) { write_file(staging / "only", "new"); });
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"manifest.json", "only"}));
  EXPECT_EQ(names_in(temp.path()), (std::vector<std::string>{"step-00000007"}));
}

TEST(Store, GoingBackLeavesLaterOnesAndKeepsWhatItWrote) {
  const TempFolder temp;
  CheckpointStore store(temp.path(), 1);
  store.write(20, filler("x"));
  store.write(10, filler("y"));
  EXPECT_EQ(names_in(temp.path()), (std::vector<std::string>{"step-00000010", "step-00000020"}));
  store.write(30, filler("z"));
  EXPECT_EQ(names_in(temp.path()), (std::vector<std::string>{"step-00000030"}));
}

TEST(Store, StepsAreOrderedAsNumbers) {
  const TempFolder temp;
  CheckpointStore store(temp.path(), 0);
  store.write(100000000, filler("nine digits"));
  store.write(99999999, filler("eight digits"));
  EXPECT_EQ(store.list().back().filename(), "step-100000000");
  fs::create_directory(temp.path() / "step-12");  // not a name of ours
  EXPECT_EQ(store.list().size(), 2u);
}

TEST(Store, FailedFillLeavesNothing) {
  const TempFolder temp;
  CheckpointStore store(temp.path());
  store.write(1, filler("good"));
  EXPECT_EQ(message_of<std::runtime_error>([&] {
              store.write(2, [](const fs::path& staging) {
                fill_with(staging, "half");
                throw std::runtime_error("no more");
              });
            }),
            "no more");
  EXPECT_EQ(names_in(temp.path()), (std::vector<std::string>{"step-00000001"}));
  EXPECT_NE(message_of<UsageError>([&] {
              store.write(2, [](const fs::path& staging) { fs::create_directory(staging / "sub"); });
            }).find("sub can't be part of a checkpoint"),
            std::string::npos);
  EXPECT_THROW(store.write(2, [](const fs::path& staging) { write_file(staging / "manifest.json", "{}"); }),
               UsageError);
  EXPECT_EQ(names_in(temp.path()), (std::vector<std::string>{"step-00000001"}));
}

TEST(Store, RemovesWhatKilledWritersLeft) {
  const TempFolder temp;
  fs::create_directories(temp.path() / ".staging" / "deep");
  fs::create_directories(temp.path() / ".removed-step-00000001");
  write_file(temp.path() / "notes.txt", "somebody's own");
  CheckpointStore(temp.path()).write(2, filler("x"));
  EXPECT_EQ(names_in(temp.path()), (std::vector<std::string>{"notes.txt", "step-00000002"}));
}

// Each way of damaging step 3: the message names the file, what is wrong, and step 2, which is whole.
TEST(Verify, NamesTheFileAndOffersTheOneBefore) {
  struct Case {
    const char* file;
    std::function<void(const fs::path&)> damage;
    const char* says;
  };
  const Case cases[] = {
      {"model.safetensors", [](const fs::path& f) { fs::resize_file(f, 3); }, "has 3 bytes instead of 9"},
      {"model.safetensors", [](const fs::path& f) { overwrite(f, "x weightt"); },
       "was altered (its SHA-256 differs)"},
      {"state.json", [](const fs::path& f) { fs::remove(f); }, "No such file or directory"},
      {"state.json", [](const fs::path& f) { fs::remove(f), fs::create_directory(f); }, "no plain file"},
      {"manifest.json", [](const fs::path& f) { fs::remove(f); }, "No such file or directory"},
      {"manifest.json", [](const fs::path& f) { fs::resize_file(f, fs::file_size(f) / 2); },
       "is cut off or altered"},
      {"manifest.json", [](const fs::path& f) { overwrite(f, ""); }, "is cut off or altered"},
      {"manifest.json", [](const fs::path& f) { overwrite(f, content(f) + " "); }, "was altered"},
      {"manifest.json", [](const fs::path& f) { fs::resize_file(f, 65 << 20); }, "more than the 64 MiB"},
  };
  for (const auto& [file, damage, says] : cases) {
    const TempFolder temp;
    CheckpointStore store(temp.path(), 0);
    for (const int step : {1, 2, 3}) store.write(step, filler("x"));
    damage(temp.path() / "step-00000003" / file);
    const auto message = message_of<UsageError>([&] { verify_checkpoint(temp.path() / "step-00000003/"); });
    EXPECT_NE(message.find((temp.path() / "step-00000003" / file).string()), std::string::npos) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message;
    EXPECT_NE(message.find("the newest whole one is " + (temp.path() / "step-00000002").string()),
              std::string::npos)
        << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Verify, EveryByteOfTheManifestCounts) {
  const TempFolder temp;
  const auto folder = CheckpointStore(temp.path()).write(3, filler("x"));
  const std::string good = content(folder / "manifest.json");
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_THROW(parse_manifest(bad), UsageError) << "byte " << i;
  }
  EXPECT_EQ(parse_manifest(good).files.size(), 2u);
}

TEST(Verify, RefusesFilesOutside) {
  for (const char* name : {"../step-00000001/state.json", "/etc/passwd", "..", "manifest.json", ""}) {
    Manifest manifest{.step = 1, .files = {}};
    manifest.files[name] = {.bytes = 1, .sha256 = "x"};
    EXPECT_THROW(parse_manifest(compose_manifest(manifest)), UsageError) << name;
  }
}

// Printing such a value would need more stack than there is.
TEST(Verify, RefusesListsThatLieInEachOtherWithoutEnd) {
  const std::string deep(200'000, '['), end(200'000, ']');
  for (const std::string& format : {deep + end, "{\"a\":" + deep + end + "}"})
    EXPECT_EQ(message_of<UsageError>(
                  [&] { parse_manifest("{\"format\":" + format + ",\"step\":1,\"files\":{}}"); }),
              "is nested deeper than 64");
  EXPECT_LT(message_of<UsageError>([&] {
              parse_manifest("{\"format\":\"" + std::string(100'000, 'x') + "\",\"step\":1,\"files\":{}}");
            }).size(),
            100u);
}

TEST(Verify, OffersTheNewestWholeOneOrSaysThatThereIsNone) {
  const TempFolder temp;
  CheckpointStore store(temp.path(), 0);
  for (const int step : {1, 2, 3, 4}) store.write(step, filler("x"));
  const auto damage = [&](const char* step) { overwrite(temp.path() / step / "state.json", "y"); };
  const auto message = [&](const char* step) {
    return message_of<UsageError>([&] { verify_checkpoint(temp.path() / step); });
  };
  damage("step-00000003");
  EXPECT_NE(message("step-00000003").find("step-00000002"), std::string::npos)
      << "the one before, not the one after";
  damage("step-00000002");
  damage("step-00000001");
  EXPECT_NE(message("step-00000003").find("step-00000004"), std::string::npos);
  damage("step-00000004");
  EXPECT_NE(message("step-00000003").find("no whole checkpoint lies beside it"), std::string::npos);
}

TEST(Verify, OneStepUnderTheNameOfAnother) {
  const TempFolder temp;
  fs::rename(CheckpointStore(temp.path()).write(3, filler("x")), temp.path() / "step-00000009");
  EXPECT_NE(
      message_of<UsageError>([&] { verify_checkpoint(temp.path() / "step-00000009"); }).find("is of step 3"),
      std::string::npos);
}

TEST(Find, RunFolderCheckpointsFolderOrOneCheckpoint) {
  const TempFolder temp;
  CheckpointStore store(temp.path() / "checkpoints", 0);
  for (const int step : {1, 2}) store.write(step, filler("x"));
  const auto newest = temp.path() / "checkpoints" / "step-00000002";
  EXPECT_EQ(find_checkpoint(temp.path()), newest);
  EXPECT_EQ(find_checkpoint(temp.path() / ""), newest);
  EXPECT_EQ(find_checkpoint(temp.path() / "checkpoints"), newest);
  EXPECT_EQ(find_checkpoint(newest), newest);
  EXPECT_EQ(find_checkpoint(temp.path() / "checkpoints/step-00000001/"),
            temp.path() / "checkpoints" / "step-00000001");
  fs::copy(newest, temp.path() / "best", fs::copy_options::recursive);
  EXPECT_EQ(find_checkpoint(temp.path() / "best"), temp.path() / "best");
  EXPECT_NO_THROW(verify_checkpoint(temp.path() / "best"));

  const TempFolder empty;
  EXPECT_NE(message_of<UsageError>([&] { find_checkpoint(empty.path()); }).find("accepted: a checkpoint"),
            std::string::npos);
  EXPECT_NE(message_of<UsageError>([&] { find_checkpoint(empty.path() / "x"); }).find("no such folder"),
            std::string::npos);
  EXPECT_NE(
      message_of<UsageError>([&] { find_checkpoint(newest / "state.json"); }).find("no folder; accepted"),
      std::string::npos);
  fs::create_directory_symlink("gone", empty.path() / "link");
  EXPECT_NE(message_of<UsageError>([&] { find_checkpoint(empty.path() / "link"); }).find("a link to gone,"),
            std::string::npos);
}

TEST(Manifest, NumbersAreWholeAndOf64Bits) {
  for (const char* bytes : {"18446744073709551655", "-1", "1.5", "1e300", "\"7\"", "null"}) {
    const std::string text =
        std::string(R"({"files":{"x":{"bytes":)") + bytes + R"(,"sha256":""}},"format":1,"step":1})";
    EXPECT_NE(
        message_of<UsageError>([&] { parse_manifest(text); }).find("where a whole number of 64 bits belongs"),
        std::string::npos)
        << bytes;
  }
}

TEST(Store, AListThatCanNotBeReadIsNoEmptyOne) {
  const TempFolder temp;
  overwrite(temp.path() / "checkpoints", "a file, not a folder");
  EXPECT_NE(message_of<SystemError>([&] {
              CheckpointStore(temp.path() / "checkpoints").list();
            }).find("cannot list the checkpoints in " + (temp.path() / "checkpoints").string() + ": "),
            std::string::npos);
  EXPECT_NE(message_of<SystemError>([&] { find_checkpoint(temp.path()); }).find("cannot list"),
            std::string::npos);
  EXPECT_TRUE(CheckpointStore(temp.path() / "none").list().empty());
}

TEST(Store, SweepsWhatKilledWritersLeft) {
  const TempFolder temp;
  CheckpointStore(temp.path() / "none").sweep();
  EXPECT_FALSE(fs::exists(temp.path() / "none"));
  CheckpointStore store(temp.path());
  store.write(1, filler("1"));
  for (const char* name : {".staging", ".removed-step-00000000"}) {
    fs::create_directory(temp.path() / name);
    overwrite(temp.path() / name / "model.safetensors", "weights");
  }
  overwrite(temp.path() / ".mine", "a user's");
  store.sweep();
  EXPECT_EQ(names_in(temp.path()), (std::vector<std::string>{".mine", "step-00000001"}));
}

TEST(Store, ACheckpointThatIsPrunedMeanwhileIsReplacedByTheNext) {
  const TempFolder temp;
  CheckpointStore store(temp.path(), 1);
  store.write(1, filler("1"));
  std::vector<std::string> read;
  use_checkpoint(temp.path(), [&](const fs::path& checkpoint) {
    if (read.empty()) store.write(2, filler("2"));  // its run goes on, right now
    read.push_back(checkpoint.filename().string());
    read.push_back(content(checkpoint / "state.json"));
  });
  EXPECT_EQ(read, (std::vector<std::string>{"step-00000001", "step-00000002", "2 state"}));
  // The same step once more.
  read.clear();
  use_checkpoint(temp.path(), [&](const fs::path& checkpoint) {
    if (read.empty()) store.write(2, filler("again"));
    read.push_back(content(checkpoint / "state.json"));
    if (read.size() == 1) throw UsageError("it has parts of both");
  });
  EXPECT_EQ(read, (std::vector<std::string>{"again state", "again state"}));
  // One that nobody took away is damaged, and stays so.
  overwrite(store.list().back() / "state.json", "altered");
  int calls = 0;
  EXPECT_NE(message_of<UsageError>([&] {
              use_checkpoint(temp.path(), [&](const fs::path&) { ++calls; });
            }).find("is damaged"),
            std::string::npos);
  EXPECT_EQ(calls, 0);
}

TEST(Store, OneThatIsPrunedBeforeItsFirstFileIsReadIsReplacedToo) {
  const TempFolder temp;
  CheckpointStore store(temp.path(), 1);
  const fs::path first = store.write(1, filler("1"));
  std::string read;
  const test::BeforeStat goes_on(first, [&] { store.write(2, filler("2")); });
  use_checkpoint(temp.path(), [&](const fs::path& found) { read = content(found / "state.json"); });
  EXPECT_EQ(read, "2 state");
  // Nothing stands in for one that was asked for by its name.
  const fs::path second = store.list().back();
  const test::BeforeStat goes_on_again(second, [&] { store.write(3, filler("3")); });
  EXPECT_NE(
      message_of<UsageError>([&] { use_checkpoint(second, [](const fs::path&) {}); }).find("no such folder"),
      std::string::npos);
}

}  // namespace
}  // namespace lockstep
