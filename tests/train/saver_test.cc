// Checkpoints of runs in shards: saved by some workers, gone on with by others; written beside the run.
#include "train/saver.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"
#include "checkpoint/stored_tensors.h"
#include "comm/all_meet.h"
#include "comm/expect_error.h"
#include "comm/world/group_impl.h"
#include "lockstep/checkpoint/hash.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategies.h"
#include "train/load_parts.h"
#include "train/trainer_case.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;

class SaverTest : public TrainerTest {
 protected:
  // A model with buffers, a parameter of one element, and, where that is asked for, weights in another order.
  static torch::nn::Sequential wide_model(bool permuted) {
    torch::manual_seed(5);
    torch::nn::Sequential model(torch::nn::Linear(1, 7), torch::nn::BatchNorm1d(7), torch::nn::Linear(7, 5),
                                torch::nn::Linear(5, 1));
    if (permuted) {
      torch::Tensor weight = model[2]->as<torch::nn::Linear>()->weight;
      weight.set_data(weight.detach().t().contiguous().t());
    }
    return model;
  }
  TrainerResult train_wide(int workers, const TrainerOptions& how, bool permuted = false) {
    std::mutex making;  // torch's generator is one for all threads
    TrainerResult first;
    on_threads(thread_groups(workers), [&](const Group& group) {
      torch::nn::Sequential model{nullptr};
      {
        const std::lock_guard lock(making);
        model = wide_model(permuted);
      }
      const TrainerResult result = Trainer(model, task(), how, group).run();
      if (group.rank() == 0) first = result;
    });
    return first;
  }
  TrainerOptions wide(const std::string& name, const std::string& strategy, std::int64_t steps,
                      bool on_disk = false) const {
    TrainerOptions how = options(name);
    how.strategy = strategy;
    how.optimizer = "adamw";
    how.precision = "bf16";  // with masters
    how.epochs = 0;
    how.steps = steps;
    how.checkpoint_every = 3;
    how.if_there = IfThere::resume;
    if (on_disk) how.offload = {.folder = folder_};
    return how;
  }
  fs::path newest(const std::string& run) const { return find_checkpoint(folder_ / run); }
};

struct Leg {
  const char* strategy;
  int workers;
  bool on_disk = false;
};

TEST_F(SaverTest, SavedByAnyWorkersAndGoneOnWithByOthers) {
  for (const bool permuted : {false, true}) {
    const std::string whole = train_wide(1, wide(permuted ? "p" : "w", "ddp", 12), permuted).params_sha256;
    int number = 0;
    for (const std::vector<Leg>& legs : std::vector<std::vector<Leg>>{
             {{"ddp", 2}, {"zero3", 4, true}, {"zero1", 3}, {"ddp", 1}},
             {{"zero2", 3, true}, {"ddp", 2}, {"zero3", 2}, {"zero2", 4, true}},
             {{"zero1", 4}, {"zero1", 1, true}, {"zero1", 2, true}, {"zero3", 3}}}) {
      const std::string name = "run" + std::to_string(number++) + (permuted ? "p" : "");
      std::int64_t steps = 0;
      std::string last;
      for (const Leg& leg : legs) {
        SCOPED_TRACE(name + " " + leg.strategy + " on " + std::to_string(leg.workers));
        last = train_wide(leg.workers, wide(name, leg.strategy, steps += 3, leg.on_disk), permuted)
                   .params_sha256;
        EXPECT_NO_THROW(verify_checkpoint(newest(name)));
        const bool parts = leg.strategy != std::string("ddp") && leg.workers > 1;
        EXPECT_EQ(StoredTensors(newest(name), "optimizer.safetensors").in_parts(), parts);
      }
      EXPECT_EQ(last, whole) << name;
    }
  }
}

TEST_F(SaverTest, TheSameBesideTheRunAndWhileItWaits) {
  std::vector<std::string> hashes;
  for (const std::string async : {"on", "off", "on, from disk"})
    for (const std::string strategy : {"ddp", "zero2"}) {
      TrainerOptions how = wide(strategy + async, strategy, 9, async == "on, from disk");
      how.checkpoint_async = async == "off" ? "off" : "on";
      how.keep = 0;
      hashes.push_back(train_wide(2, how).params_sha256);
      EXPECT_EQ(CheckpointStore(folder_ / (strategy + async) / "checkpoints").list().size(), 3u);
      const Json summary = Json::parse(text(strategy + async + "/summary.json"));
      EXPECT_EQ(summary.at("checkpoints_written"), 3);
      EXPECT_GT(summary.at("checkpoint_write_ms").get<double>(), 0);
      EXPECT_GT(summary.at("checkpoint_pause_ms").get<double>(), 0);
    }
  EXPECT_EQ(std::count(hashes.begin(), hashes.end(), hashes[0]), 6);
  // What is in them is the state of their step, not of a later one.
  for (const int step : {3, 6, 9}) {
    char name[32];
    std::snprintf(name, sizeof name, "step-%08d", step);
    for (const char* run : {"zero2on", "zero2on, from disk", "ddpon, from disk"})
      for (const char* set : {"model.safetensors", "optimizer.safetensors"}) {
        const StoredTensors on(folder_ / run / "checkpoints" / name, set);
        const StoredTensors off(folder_ / "ddpoff/checkpoints" / name, set);
        ASSERT_EQ(on.forms().size(), off.forms().size());
        for (const auto& [tensor, form] : on.forms()) {
          std::vector<std::byte> a(form.bytes), b(form.bytes);
          on.read(tensor, 0, form.bytes / size_of(form.dtype), a);
          off.read(tensor, 0, form.bytes / size_of(form.dtype), b);
          EXPECT_EQ(a, b) << tensor << " of step " << step << " of " << run;
        }
      }
  }
}

TEST_F(SaverTest, NoWorkerCopiesMoreThanItsShare) {
  TrainerOptions how = options("run");
  how.strategy = "zero3";
  how.optimizer = "adamw";
  how.epochs = 0;
  how.steps = 2;
  constexpr int kWorkers = 4;
  constexpr std::int64_t kElements = 64 * 1000 + 1000;
  on_threads(thread_groups(kWorkers), [&](const Group& group) {
    torch::nn::Sequential model(torch::nn::Linear(1, 64), torch::nn::Linear(64, 1000),
                                torch::nn::Linear(1000, 1));
    torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : model->parameters()) parameter.fill_(0.01);
    torch::AutoGradMode grad(true);
    Trainer(model, task(), how, group).run();
  });
  const Json summary = Json::parse(text("run/summary.json"));
  const auto copied = summary.at("checkpoint_copied_bytes").get<std::vector<double>>();
  ASSERT_EQ(copied.size(), static_cast<std::size_t>(kWorkers));
  const double share = 3.0 * 4 * kElements / kWorkers;  // parameters and two kinds of state
  for (const double bytes : copied) EXPECT_NEAR(bytes, share, 0.1 * share);
}

TEST_F(SaverTest, AFlippedBitIsNamedWhenItIsReadAndNothingIsTrained) {
  train_wide(2, wide("run", "zero1", 3));
  const fs::path checkpoint = newest("run");
  const fs::path file = checkpoint / "optimizer-00001-of-00002.safetensors";
  std::fstream change(file, std::ios::in | std::ios::out | std::ios::binary);
  change.seekp(-1, std::ios::end);
  change.put('\x55');
  change.close();
  for (const int workers : {1, 2, 3}) {
    const std::string said =
        refusal([&] { train_wide(workers, wide("run", workers == 1 ? "ddp" : "zero2", 6)); });
    EXPECT_NE(
        said.find("checkpoint step-00000003 is damaged: " + file.string() + " was altered (the SHA-256 of"),
        std::string::npos)
        << said;
    EXPECT_NE(said.find(" of \""), std::string::npos) << said;  // the tensor
  }
  EXPECT_EQ(newest("run"), checkpoint);
}

// A folder where nobody can write: the run fails with one line, and what was there is there.
TEST_F(SaverTest, WhatTheThreadCouldNotWriteEndsTheRunOnAllRanks) {
  for (const std::string strategy : {"ddp", "zero2"}) {
    const fs::path checkpoints = folder_ / strategy;
    std::atomic<int> told = 0;
    on_threads(thread_groups(2), [&](const Group& group) {
      Saver saver(group, CheckpointStore(checkpoints), Saver::Mode::in_background,
                  [&](const SaveReport&) { ++told; });
      torch::nn::Linear model(3, 2);
      const auto sharing = make_strategy(strategy, model, group);
      const SliceOwners owners(*sharing);
      const auto state = [&](bool good) {
        SavedState saved;
        saved.sets["model.safetensors"] = model_runs(*sharing, owners, {});
        saved.files.emplace_back("state.json", [good](const fs::path& file) {
          if (!good) throw SystemError("cannot write " + file.string(), ENOSPC);
          write_file(file, "{}\n");
        });
        return saved;
      };
      saver.begin(1, state(true), owners, 0);
      saver.begin(2, state(false), owners, 0);  // waits for the first
      EXPECT_TRUE(saver.busy());
      std::string said;
      try {
        saver.wait();
      } catch (const SystemError& error) {
        said = error.what();
      }
      EXPECT_NE(said.find("No space left on device"), std::string::npos) << said;
      EXPECT_FALSE(saver.busy());
      saver.begin(3, state(true), owners, 0);  // it may be tried again
      saver.wait();
    });
    EXPECT_EQ(told, 4);
    const auto left = CheckpointStore(checkpoints).list();
    ASSERT_EQ(left.size(), 2u);
    for (const fs::path& one : left) EXPECT_NO_THROW(verify_checkpoint(one));
    EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints), fs::directory_iterator()), 2);
  }
}

// State on disk is not copied: the next update would write over what is still to be read.
TEST_F(SaverTest, AnUpdateWaitsForWhatIsReadFromDisk) {
  on_threads(thread_groups(1), [&](const Group& group) {
    torch::nn::Linear model(4, 3);
    const auto strategy = make_strategy("ddp", model, group);
    const SliceOwners owners(*strategy);
    std::vector<float> moments(12);
    for (std::size_t i = 0; i < moments.size(); ++i) moments[i] = static_cast<float>(i);
    std::atomic<bool> read = false;
    std::promise<void> may_read;
    SavedState saved;
    saved.sets["model.safetensors"] = model_runs(*strategy, owners, {});
    add_stored_run(saved.sets["optimizer.safetensors"], owners, "exp_avg/weight", 0, torch::kFloat32,
                   [&](const auto& take) {
                     may_read.get_future().wait();
                     const auto bytes = std::as_bytes(std::span(moments));
                     take(bytes.first(20));
                     take(bytes.subspan(20));
                     read = true;
                   });
    Saver saver(group, CheckpointStore(folder_ / "run"), Saver::Mode::in_background,
                [](const SaveReport&) {});
    saver.begin(1, std::move(saved), owners, 0);
    EXPECT_FALSE(read);  // the run goes on
    auto update = std::async(std::launch::async, [&] {
      saver.hold_update();
      return read.load();
    });
    EXPECT_EQ(update.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    may_read.set_value();
    EXPECT_TRUE(update.get());
    saver.wait();
    std::vector<float> back(12);
    StoredTensors(folder_ / "run/step-00000001", "optimizer.safetensors")
        .read("exp_avg/weight", 0, 12, std::as_writable_bytes(std::span(back)));
    EXPECT_EQ(back, moments);
  });
}

// The others have nothing to wait for and would take a slow disk for a lost rank.
TEST_F(SaverTest, RanksMeetWhileOneOfThemReadsFromDisk) {
  for (const std::string kind : {"ddp", "zero2"})
    expect_all_meet(2, std::chrono::seconds(1), [&](const Group& group, std::chrono::milliseconds patience) {
      torch::nn::Linear model(4, 3);
      const auto strategy = make_strategy(kind, model, group);
      const SliceOwners owners(*strategy);
      const std::size_t bytes = owners.slices()[0].elements.count() * sizeof(float);
      SavedState saved;
      add_stored_run(saved.sets["optimizer.safetensors"], owners, "exp_avg/weight", 0, torch::kFloat32,
                     [&, bytes](const auto& take) {
                       if (group.rank() == 0) std::this_thread::sleep_for(patience + std::chrono::seconds(2));
                       take(std::vector<std::byte>(bytes));
                     });
      Saver saver(group, CheckpointStore(folder_ / (kind + std::to_string(patience.count()))),
                  Saver::Mode::in_background, [](const SaveReport&) {});
      saver.begin(1, std::move(saved), owners, 0);
      saver.hold_update();
      group.barrier();  // as the exchange of the next step
      saver.hold_update();
      saver.wait();
    });
}

// Another machine has another disk: its parts come to rank 0, and from there; also those that are on disk.
class SaverWithState : public SaverTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(State, SaverWithState, ::testing::Bool(),
                         [](const auto& on_disk) { return on_disk.param ? "OnDisk" : "InMemory"; });

TEST_P(SaverWithState, AWorkerThatDoesNotSeeTheFolderSendsItsPart) {
  const Offload offload = GetParam() ? Offload{.folder = folder_} : Offload();
  std::string before, after;
  on_threads(thread_groups(3), [&](const Group& group) {
    const fs::path folder = folder_ / (group.rank() == 1 ? "elsewhere" : "here");
    torch::nn::Linear model(30, 20);
    const auto sharing = make_strategy("zero2", model, group);
    AdamW optimizer(*sharing, {.lr = 0.1, .offload = offload});
    const auto step = [&] {
      model->forward(torch::ones({2, 30})).sum().backward();
      optimizer.step();
    };
    step();
    const SliceOwners owners(*sharing);
    SavedState saved;
    saved.sets["model.safetensors"] = model_runs(*sharing, owners, {});
    for (const StatePart& part : optimizer.state_parts())
      if (part.everywhere)
        add_whole(saved.sets["optimizer.safetensors"], group.rank(), part.name, part.tensor);
      else if (part.stream)
        add_stored_run(saved.sets["optimizer.safetensors"], owners, part.name, part.slice, part.dtype,
                       part.stream);
      else
        add_run(saved.sets["optimizer.safetensors"], owners, part.name, part.slice, part.tensor);
    fs::path written;
    {
      Saver saver(group, CheckpointStore(folder), Saver::Mode::in_background,
                  [&](const SaveReport& report) { written = report.folder; });
      saver.begin(1, std::move(saved), owners, 0);
      saver.wait();
    }
    step();
    const std::string hash = params_sha256(*model);
    if (group.rank() == 0) {
      before = hash;
      EXPECT_NO_THROW(verify_checkpoint(written));
    }
    group.barrier();
    // Back to what was saved: the same step again.
    load_optimizer_state(folder / "step-00000001", optimizer, owners, group);
    const torch::NoGradGuard no_grad;
    const StoredTensors stored(folder_ / "here/step-00000001", "model.safetensors");
    for (const auto& [name, tensor] : model_state(*model))
      stored.read(name, 0, static_cast<std::uint64_t>(tensor.numel()),
                  {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    const torch::AutoGradMode grad(true);
    step();
    if (group.rank() == 0) after = params_sha256(*model);
  });
  EXPECT_FALSE(before.empty());
  EXPECT_EQ(before, after);
  EXPECT_FALSE(fs::exists(folder_ / "elsewhere"));
}

// Those that have nothing to send wait for rank 0, which takes in what the others send: for longer, perhaps,
// than a call may last.
TEST_F(SaverTest, RanksMeetWhileThePartsOfAnotherDiskArrive) {
  expect_all_meet(3, std::chrono::seconds(2), [&](const Group& group, std::chrono::milliseconds patience) {
    const fs::path folder = folder_ / std::to_string(patience.count());
    torch::nn::Linear model(30, 20);
    const auto strategy = make_strategy("zero2", model, group);
    const SliceOwners owners(*strategy);
    ASSERT_GT(owners.of(1, 0).count(), 0u);
    const std::size_t bytes = owners.slices()[0].elements.count() * sizeof(float);
    SavedState saved;
    for (const char* set : {"a.safetensors", "b.safetensors", "c.safetensors", "d.safetensors"})
      add_stored_run(saved.sets[set], owners, "exp_avg/weight", 0, torch::kFloat32,
                     [&, bytes](const auto& take) {
                       if (group.rank() == 1) std::this_thread::sleep_for(patience / 2);
                       take(std::vector<std::byte>(bytes));
                     });
    Saver saver(group, CheckpointStore(folder / (group.rank() == 1 ? "elsewhere" : "here")),
                Saver::Mode::in_background, [](const SaveReport&) {});
    saver.begin(1, std::move(saved), owners, 0);
    saver.hold_update();
    group.barrier();  // as the exchange of the next step
    saver.wait();
    if (group.rank() == 0) verify_checkpoint(folder / "here/step-00000001");
  });
}

// It can't send what it can't read, and rank 0 waits for it: that is no checkpoint that failed, but its
// state.
TEST_F(SaverTest, AWorkerWhoseStateIsLostWhileItIsSentSaysSo) {
  std::atomic<int> told = 0;
  on_threads(thread_groups(2), [&](const Group& group) {
    torch::nn::Linear model(4, 3);
    const auto strategy = make_strategy("zero2", model, group);
    const SliceOwners owners(*strategy);
    SavedState saved;
    for (std::size_t i = 0; i < owners.slices().size(); ++i)
      add_stored_run(saved.sets["optimizer.safetensors"], owners, "exp_avg/" + owners.slices()[i].name, i,
                     torch::kFloat32,
                     [](const auto&) { throw OffloadError("cannot read the scratch file", EIO); });
    Saver saver(group, CheckpointStore(folder_ / (group.rank() == 0 ? "here" : "elsewhere")),
                Saver::Mode::in_background, [&](const SaveReport&) { ++told; });
    const auto begin = [&] { saver.begin(1, std::move(saved), owners, 0); };
    if (group.rank() == 0) {
      expect_error<PeerError>(begin, {"rank 1", "gone"});
    } else {
      expect_error<OffloadError>(begin, {"cannot read the scratch file: Input/output error"});
      GroupImpl::of(group).give_up(PeerError(1, "rank 1 is gone"));  // as Trainer::run does
    }
  });
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace lockstep::testing
