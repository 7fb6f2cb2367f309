// The trainer with its optimizer's state on disk: disks that break, ranks that differ.
#include "lockstep/offload/offload.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/expect_error.h"
#include "lockstep/base/fd.h"
#include "lockstep/parallel/units.h"
#include "train/trainer_case.h"

namespace {
thread_local bool disk_is_full = false;
}

// In place of the C library's, for this whole program: what this thread writes at a place finds no room.
extern "C" ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  if (disk_is_full) {
    errno = ENOSPC;
    return -1;
  }
  return ::syscall(SYS_pwrite64, fd, bytes, count, at);
}

namespace lockstep::testing {
namespace {

// From now on this is in the place of scratch files in this folder.
int put_in_place(const fs::path& folder, int other) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (!target.starts_with(folder.string() + "/") || target.find("(deleted)") == std::string::npos) continue;
    if (::dup2(other, std::stoi(entry.path().filename())) >= 0) ++files;
  }
  return files;
}
// Nothing can be written any more.
int fill_disk(const fs::path& folder) {
  const UniqueFd full(::open("/dev/full", O_RDWR | O_CLOEXEC));
  return put_in_place(folder, full.get());
}
// What was there is not.
int cut_file(const fs::path& folder) {
  const UniqueFd empty(::open(folder.parent_path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  return put_in_place(folder, empty.get());
}

// A line in a unit.
struct UnitLine : torch::nn::Module {
  UnitOf<torch::nn::LinearImpl> line;
  UnitLine() { line = shard(register_module("line", torch::nn::Linear(1, 1))); }
  torch::Tensor forward(const torch::Tensor& x) { return line.forward(x); }
};

class OffloadTest : public TrainerTest {
 protected:
  TrainerOptions on_disk(const std::string& name, int rank) const {
    TrainerOptions how = options(name);
    how.strategy = "zero1";
    how.offload = {.folder = folder_ / std::to_string(rank)};
    fs::create_directories(how.offload.folder);
    return how;
  }
};

// The others wait for the updates of the one that has lost its state: they are told.
TEST_F(OffloadTest, ADiskThatFillsUpOnOneRankEndsTheRunOnAll) {
  const fs::path broken = folder_ / "1";
  std::atomic<int> files = 0, steps = 0;
  Task what = task();
  what.loss = [&](const torch::Tensor& y, const Batch& batch) {
    if (++steps == 9) files = fill_disk(broken);  // in the third step
    return squared(y, batch);
  };
  on_threads(thread_groups(2), [&](const Group& group) {
    torch::nn::Linear model(1, 1);
    const auto run = [&] { Trainer(model, what, on_disk("run", group.rank()), group).run(); };
    if (group.rank() == 1)
      expect_error<OffloadError>(run, {"cannot", "the scratch file in " + broken.string()});
    else
      expect_error<PeerError>(run, {"rank 1", "gave up in Trainer::run: cannot", broken.string()});
  });
  EXPECT_EQ(files, 1);
  EXPECT_TRUE(fs::is_empty(broken));
}

// Its part of the parameters, which the others gather.
TEST_F(OffloadTest, ADiskUnderParametersThatBreaksOnOneRankEndsTheRunOnAll) {
  for (const auto& [breaks, says] :
       {std::pair(&fill_disk, "cannot write"), std::pair(&cut_file, "it ends at byte")}) {
    const fs::path broken = folder_ / "1";
    std::atomic<int> files = 0, steps = 0;
    on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
      const auto model = std::make_shared<UnitLine>();
      Task what = task();
      what.forward = [&](const Batch& batch) { return model->forward(batch.data); };
      what.loss = [&](const torch::Tensor& y, const Batch& batch) {
        if (++steps == 9) files = breaks(broken);  // in the third step
        return squared(y, batch);
      };
      TrainerOptions how = on_disk("run", group.rank());
      how.strategy = "zero3";
      how.if_there = IfThere::overwrite;
      how.parallel.offload_params = std::exchange(how.offload, {});
      const auto run = [&] { Trainer(model, what, how, group).run(); };
      if (group.rank() == 1)
        expect_error<OffloadError>(run, {says, "the scratch file in " + broken.string()});
      else
        expect_error<PeerError>(run, {"rank 1"});
    });
    EXPECT_EQ(files, 1);
    EXPECT_TRUE(fs::is_empty(broken));
  }
}

// Its lanes are over, and it waits for the others' gradients while they gather what it cannot read.
TEST_F(OffloadTest, ADiskThatBreaksOnARankThatOnlyServesEndsTheRunOnAll) {
  const fs::path broken = folder_ / "1";
  std::atomic<int> files = 0, passes = 0;
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    const auto model = std::make_shared<UnitLine>();
    Task what = task();
    what.forward = [&](const Batch& batch) {
      if (group.rank() == 0 && ++passes == 6) {  // the third step's second lane: rank 1 has one a step
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        files = cut_file(broken);
      }
      return model->forward(batch.data);
    };
    TrainerOptions how = on_disk("run", group.rank());
    how.lanes = 3;
    how.strategy = "zero3";
    how.parallel.offload_params = std::exchange(how.offload, {});
    const auto run = [&] { Trainer(model, what, how, group).run(); };
    const auto begin = std::chrono::steady_clock::now();
    if (group.rank() == 1)
      expect_error<OffloadError>(run, {"it ends at byte", "the scratch file in " + broken.string()});
    else
      expect_error<PeerError>(run, {"rank 1", "it ends at byte"});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  });
  EXPECT_EQ(files, 1);
}

// Of two elements a third worker has none: nothing of its own is read for a checkpoint, while the others' is.
TEST_F(OffloadTest, AWorkerWithoutElementsSavesParametersOnDiskWithTheOthers) {
  std::vector<std::string> hashes;
  for (const bool there : {false, true})
    on_threads(thread_groups(3, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
      const auto model = std::make_shared<UnitLine>();
      Task what = task();
      what.forward = [&](const Batch& batch) { return model->forward(batch.data); };
      for (torch::Tensor& p : model->parameters()) torch::nn::init::constant_(p, 0.5);
      TrainerOptions how = on_disk(there ? "there" : "here", group.rank());
      how.strategy = "zero3";
      how.checkpoint_every = 2;
      const Offload disk = std::exchange(how.offload, {});
      if (there) how.parallel.offload_params = disk;
      const TrainerResult result = Trainer(model, what, how, group).run();
      if (group.rank() == 0) hashes.push_back(result.params_sha256);
    });
  EXPECT_EQ(hashes[0], hashes[1]);
}

// Its state is loaded by this rank's own thread, and the others are there already.
TEST_F(OffloadTest, ADiskThatIsFullWhenStateIsLoadedEndsTheRunOnAll) {
  const auto resumed = [&](const Group& group, std::int64_t epochs) {
    TrainerOptions how = on_disk("run", group.rank());
    how.strategy = "ddp";
    how.if_there = IfThere::resume;
    how.epochs = epochs;
    torch::nn::Linear model(1, 1);
    Trainer(model, task(), how, group).run();
  };
  on_threads(thread_groups(2), [&](const Group& group) { resumed(group, 1); });
  on_threads(thread_groups(2, {.timeout = std::chrono::seconds(20)}), [&](const Group& group) {
    const auto run = [&] { resumed(group, 2); };
    disk_is_full = group.rank() == 1;
    if (group.rank() == 1)
      expect_error<OffloadError>(run, {"cannot write the scratch file in", "No space left on device"});
    else
      expect_error<PeerError>(run, {"rank 1", "gave up in Trainer: cannot write the scratch file in"});
  });
}

TEST_F(OffloadTest, AFolderThatOneRankCannotUseIsToldToAll) {
  const fs::path missing = folder_ / "missing";
  on_threads(thread_groups(2), [&](const Group& group) {
    torch::nn::Linear model(1, 1);
    TrainerOptions how = on_disk("run", group.rank());
    if (group.rank() == 1) how.offload.folder = missing;
    expect_error<UsageError>([&] { Trainer(model, task(), how, group); },
                             {"offload = " + missing.string() + ": No such file", "accepted: a folder"});
  });
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(OffloadTest, AllRanksOrNone) {
  on_threads(thread_groups(2), [&](const Group& group) {
    torch::nn::Linear model(1, 1);
    TrainerOptions how = on_disk("run", group.rank());
    if (group.rank() == 1) how.offload = {};
    expect_error<UsageError>([&] { Trainer(model, task(), how, group); },
                             {"rank 1", "offload = false", "rank 0 has true"});
  });
}

TEST_F(OffloadTest, SaysWhatIsOnDisk) {
  on_threads(thread_groups(2), [&](const Group& group) {
    torch::nn::Linear model(1, 1);
    Trainer(model, task(), on_disk("run", group.rank()), group).run();
  });
  const auto figures = nlohmann::json::parse(text("run/summary.json")).at("offload");
  EXPECT_EQ(figures.at("folder"), (folder_ / "0").string());
  // Of two parameters one worker has one: a page each.
  EXPECT_EQ(figures.at("bytes"), (std::vector<std::int64_t>{4096, 4096}));
  EXPECT_GT(figures.at("predicted_ms"), 0);
  EXPECT_GT(figures.at("measured_ms"), 0);
}

}  // namespace
}  // namespace lockstep::testing
