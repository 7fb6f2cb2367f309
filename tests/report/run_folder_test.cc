#include "report/run_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "base/job_name.h"
#include "base/shell_word.h"
#include "base/stranger_lock.h"
#include "base/synced.h"
#include "lockstep/base/error.h"
#include "report/folder_content.h"
#include "report/folder_lock.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class FolderOwner : public ::testing::Test {
 protected:
  FolderOwner() {
    std::string name = (fs::temp_directory_path() / "lockstep-folder-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~FolderOwner() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  // What the UsageError says; empty when there is none.
  std::string refusal(FolderUse use) const {
    try {
      const RunFolder folder(folder_, use, 0);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      if (!entry.is_directory()) found.push_back(fs::relative(entry.path(), folder_).string());
    std::sort(found.begin(), found.end());
    return found;
  }

  fs::path folder_;
};

TEST_F(FolderOwner, HasOneOwner) {
  auto first = std::make_unique<FolderLock>(folder_);
  try {
    const FolderLock second(folder_);
    FAIL() << "two owners";
  } catch (const UsageError& error) {
    const std::string said = error.what();
    EXPECT_NE(
        said.find(folder_.string() + " is being written by process " + std::to_string(::getpid()) + " on "),
        std::string::npos)
        << said;
  }
  first.reset();
  EXPECT_TRUE(fs::is_empty(folder_));
  write(".lock", "process 1 on the moon\n");  // its owner is dead
  const FolderLock next(folder_);
}

TEST_F(FolderOwner, AStrangersLockOnWhatAKilledRunLeftIsNoOwner) {
  if (::getuid() != 0) GTEST_SKIP() << "only root may make a process of another user";
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  write(".lock", "process 1 on the moon\n");
  ASSERT_EQ(::chmod((folder_ / ".lock").c_str(), 0644), 0);  // an earlier version's
  const test::StrangersLock stranger(folder_ / ".lock", test::StrangersWay::read_lock);
  EXPECT_NO_THROW(const FolderLock next(folder_));
}

TEST_F(FolderOwner, TakesWhatKilledProcessesLeftForNothing) {
  write(".lock", "");
  write(".job.txt.17", "half");
  EXPECT_TRUE(is_unused(folder_));
  EXPECT_EQ(refusal(FolderUse::fresh), "");
  EXPECT_FALSE(is_unused(folder_));
  EXPECT_NE(refusal(FolderUse::fresh).find("is not empty"), std::string::npos);
  for (const char* name : {".lock", ".lock.new", ".steps.csv.1", ".index.html.4711"})
    EXPECT_TRUE(is_leftover(name)) << name;
  for (const char* name : {"steps.csv", ".steps.csv", ".steps.csv.", ".steps.csv.1x", ".notes.1", ".1", "."})
    EXPECT_FALSE(is_leftover(name)) << name;
}

TEST_F(FolderOwner, OverwritesOnlyRuns) {
  write("notes.txt", "mine");
  write("checkpoints/model.pt", "mine");
  write("checkpoints/step-00000007/mine", "no manifest");
  write("checkpoints/step-00000008/manifest.json", "{}");
  write("checkpoints/step-best/manifest.json", "a copy of the user's");
  write("checkpoints/set-aside/step-00000009/manifest.json", "{}");
  write("checkpoints/step-1000/manifest.json", "another program's");
  write("checkpoints/.removed-step-00000006/manifest.json", "{}");
  write("checkpoints/.writer", "process 1 on the moon\n");
  EXPECT_EQ(refusal(FolderUse::overwrite), "");
  EXPECT_EQ(names(), (std::vector<std::string>{
                         "buckets.csv", "checkpoints/model.pt", "checkpoints/step-00000007/mine",
                         "checkpoints/step-1000/manifest.json", "checkpoints/step-best/manifest.json",
                         "epochs.csv", "evaluations.csv", "notes.txt", "steps.csv"}));
  for (const char* name : {"config.json", "evaluations.csv", "index.html", "job.txt", "latency.csv",
                           "steps.csv", "summary.json", "trace.json"}) {
    fs::remove(folder_ / name);
    write(name, "something of a user's, of traceEvents too: {\"traceEvents\":[]}\n");
    const std::string said = refusal(FolderUse::overwrite);
    EXPECT_NE(said.find("would remove " + (folder_ / name).string()), std::string::npos) << said;
    EXPECT_TRUE(fs::exists(folder_ / "epochs.csv")) << "removed before all was checked";
    fs::remove(folder_ / name);
  }
  fs::create_symlink(folder_ / "notes.txt", folder_ / "config.json");
  EXPECT_NE(refusal(FolderUse::overwrite), "");
}

TEST_F(FolderOwner, NewestIsACheckpointOfTheHighestStep) {
  EXPECT_EQ(newest_checkpoint_in(folder_), "");
  EXPECT_EQ(newest_checkpoint_in(folder_ / "nowhere"), "");
  for (const char* name : {"step-00000120", "step-100000000", "step-00000130", "step-best"})
    write(std::string(name) + "/manifest.json", "{}");
  fs::create_directory(folder_ / "step-200000000");  // has no manifest
  EXPECT_EQ(newest_checkpoint_in(folder_), folder_ / "step-100000000");
}

TEST_F(FolderOwner, KnowsItsCheckpointsHoweverTheyAreSpelled) {
  write("checkpoints/step-00000120/manifest.json", "{}");
  write("checkpoints/set-aside/step-00000120/manifest.json", "{}");
  const fs::path checkpoints = folder_ / "checkpoints", step = checkpoints / "step-00000120";
  EXPECT_TRUE(is_checkpoint_of(folder_, step));
  EXPECT_TRUE(is_checkpoint_of(folder_, checkpoints / kSetAside / "step-00000120"));
  fs::create_directory_symlink(step, folder_ / "best");
  EXPECT_TRUE(is_checkpoint_of(folder_, folder_ / "best"));
  const fs::path before = fs::current_path();
  fs::current_path(checkpoints);
  EXPECT_TRUE(is_checkpoint_of(folder_, "step-00000120"));
  EXPECT_TRUE(is_checkpoint_of("..", "step-00000120"));
  fs::current_path(step);
  EXPECT_TRUE(is_checkpoint_of(folder_, "."));
  fs::current_path(before);
}

// What remove_run() leaves is nothing that it would remove.
TEST_F(FolderOwner, KnowsWhichCheckpointsStay) {
  const fs::path checkpoints = folder_ / "checkpoints", elsewhere = folder_ / "kept/step-00000130";
  const fs::path link = checkpoints / "step-00000130";
  write("kept/step-00000130/manifest.json", "{}");
  const fs::path stay[] = {checkpoints / kSetAside / "step-00000120.2", checkpoints / "step-best", elsewhere};
  for (const char* name : {"set-aside/step-00000120.2", "step-best", ".removed-step-00000110"})
    write("checkpoints/" + std::string(name) + "/manifest.json", "{}");
  fs::create_directory_symlink(elsewhere, link);
  for (const fs::path& checkpoint : stay) EXPECT_FALSE(is_checkpoint_of(folder_, checkpoint)) << checkpoint;
  for (const fs::path& checkpoint : {link, checkpoints / ".removed-step-00000110"})
    EXPECT_TRUE(is_checkpoint_of(folder_, checkpoint)) << checkpoint;
  remove_run(folder_);
  for (const fs::path& checkpoint : stay) EXPECT_TRUE(fs::exists(checkpoint / "manifest.json")) << checkpoint;
  EXPECT_FALSE(fs::exists(link));
}

TEST_F(FolderOwner, KnowsTheNamesOfJobs) {
  for (const char* const name :
       {"0123456789abcdef0123456789abcdef\n", "none agent 7 started 12 boot 1-2-3\n"}) {
    write("job.txt", name);
    EXPECT_EQ(refusal(FolderUse::overwrite), "") << name;
  }
  // Earlier versions wrote any name: in a run's folder it is that of its job.
  write("job.txt", "none\n");
  write("config.json", "{\"lane_batch\": 4}\n");
  EXPECT_EQ(refusal(FolderUse::overwrite), "");
}

TEST_F(FolderOwner, LeavesALockOfSomebodyElseAlone) {
  write(".lock", "for another program\n");
  EXPECT_NE(refusal(FolderUse::fresh).find((folder_ / ".lock").string() + " is no lock of lockstep train"),
            std::string::npos);
  EXPECT_EQ(names(), std::vector<std::string>{".lock"});
  EXPECT_GT(fs::file_size(folder_ / ".lock"), 0U);
}

// Whoever took that for "begun by another job" would begin anew.
TEST_F(FolderOwner, AJobThatCantBeReadIsAnError) {
  fs::create_directory(folder_ / "job.txt");
  EXPECT_THROW(RunFolder::begun_by_this_job(folder_), SystemError);
  EXPECT_FALSE(RunFolder::begun_by_this_job(folder_ / "none"));
}

TEST_F(FolderOwner, BelongsToTheJobThatBeganIt) {
  for (const char* name : {"LOCKSTEP_JOB", "TORCHELASTIC_RUN_ID"}) ::unsetenv(name);
  EXPECT_EQ(job_name(), "");
  ::setenv("TORCHELASTIC_RUN_ID", "none", 1);
  // More than the name, which all runs may share, and the same at every call.
  EXPECT_NE(job_name(), "none");
  EXPECT_TRUE(job_name().starts_with("none agent "));
  EXPECT_EQ(job_name(), job_name());
  EXPECT_EQ(refusal(FolderUse::fresh), "");
  EXPECT_TRUE(RunFolder::begun_by_this_job(folder_));
  write("job.txt", "none\n");
  EXPECT_FALSE(RunFolder::begun_by_this_job(folder_));
  ::setenv("LOCKSTEP_JOB", "job-1", 1);
  EXPECT_EQ(job_name(), "job-1");
  for (const char* name : {"LOCKSTEP_JOB", "TORCHELASTIC_RUN_ID"}) ::unsetenv(name);
}

TEST(ShellWord, IsQuotedWhereItHasToBe) {
  EXPECT_EQ(shell_word("runs/a-1_b.c"), "runs/a-1_b.c");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("$x`y`!~"), "'$x`y`!~'");
  EXPECT_EQ(shell_word("é"), "'é'");
}

// What is saved inside is as safe as the names above it.
TEST_F(FolderOwner, EveryNewFolderOnTheWayIsSynced) {
  test::synced().clear();
  const RunFolder folder(folder_ / "runs" / "new", FolderUse::fresh, 0);
  for (const fs::path& above : {folder_, folder_ / "runs"})
    EXPECT_TRUE(test::synced().contains(above.string())) << above;
}

// Otherwise a power cut could bring back a checkpoint of steps that the tables have no longer.
TEST_F(FolderOwner, WhatIsSetAsideIsSynced) {
  const fs::path checkpoints = folder_ / "checkpoints", aside = checkpoints / kSetAside;
  write("checkpoints/step-00000120/manifest.json", "{}");
  const auto resume = [&](std::int64_t step, bool syncs) {
    test::synced().clear();
    const RunFolder folder(folder_, FolderUse::resume, step);
    for (const fs::path& place : {aside, checkpoints})
      EXPECT_EQ(test::synced().contains(place.string()), syncs) << place << " from step " << step;
  };
  resume(120, false);
  EXPECT_FALSE(fs::exists(aside));
  fs::create_directories(aside);  // there already: making it syncs the folder above
  resume(119, true);
  EXPECT_TRUE(fs::exists(aside / "step-00000120"));
  resume(119, true);  // as behind an attempt that was killed when it had moved it
}

}  // namespace
}  // namespace lockstep
