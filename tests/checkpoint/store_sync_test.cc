// What is on disk before write() returns: every name on the way to the checkpoint.
#include <gtest/gtest.h>

#include <string>

#include "base/synced.h"
#include "checkpoint/temp_folder.h"
#include "lockstep/base/error.h"
#include "lockstep/base/folder.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::synced;
using test::TempFolder;

TEST(StoreSync, EveryNewFolderOnTheWayIsSynced) {
  const TempFolder temp;
  const fs::path run = temp.path() / "runs" / "first";
  synced().clear();
  const auto checkpoint =
      CheckpointStore(run / "checkpoints").write(1, [](const fs::path& f) { write_file(f / "x", "y"); });
  for (const fs::path& folder : {temp.path(), temp.path() / "runs", run, run / "checkpoints"})
    EXPECT_TRUE(synced().contains(folder.string())) << folder;
  // The files themselves, while they were still hidden.
  EXPECT_TRUE(synced().contains((run / "checkpoints" / ".staging" / "x").string()));

  synced().clear();  // what was there before needs no sync again
  CheckpointStore(run / "checkpoints").write(2, [](const fs::path& f) { write_file(f / "x", "y"); });
  EXPECT_FALSE(synced().contains(temp.path().string()));
  EXPECT_FALSE(synced().contains(run.string()));
}

TEST(StoreSync, AFolderIsMadeWhateverItsSpelling) {
  const TempFolder temp;
  const std::string name = temp.path().string();
  for (const std::string& spelled : {name + "/a/b/", name + "/a/./c", name + "/d/../e", name})
    EXPECT_NO_THROW(make_folder(spelled)) << spelled;
  for (const char* made : {"a/b", "a/c", "e"}) EXPECT_TRUE(fs::is_directory(temp.path() / made)) << made;
  write_file(temp.path() / "file", "");
  for (const char* wrong : {"file", "file/inside"}) {
    const std::string said = test::message_of<SystemError>([&] { make_folder(temp.path() / wrong); });
    EXPECT_NE(said.find("cannot create the folder " + (temp.path() / wrong).string()), std::string::npos)
        << said;
  }
}

}  // namespace
}  // namespace lockstep
