// The loader: what a lane holds depends on (dataset, seed, step, lane) alone.
#include "lockstep/data/loader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "comm/expect_error.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/shapes.h"

namespace lockstep {
namespace {

using testing::expect_error;

// `count` drawings, augmented.
std::shared_ptr<const Dataset> drawings(int count) {
  Images images;
  images.pixels.resize(static_cast<std::size_t>(count) * 3072);
  for (int i = 0; i < count; ++i)
    images.labels.push_back(static_cast<std::uint8_t>(draw_shape(
        1, Split::train, i, std::span(images.pixels).subspan(static_cast<std::size_t>(i) * 3072, 3072))));
  return std::make_shared<ImageDataset>(std::move(images));
}

struct Piece {
  LaneInfo info;
  torch::Tensor data;
  torch::Tensor target;
  std::int64_t samples = 0;
};
using Pieces = std::map<std::pair<std::int64_t, int>, Piece>;  // by (step, lane)

// What all workers of `size` get, from `first_step` on and before `end`.
Pieces collect(const std::shared_ptr<const Dataset>& dataset, int size, LoaderOptions options) {
  Pieces pieces;
  for (int rank = 0; rank < size; ++rank) {
    Loader loader(dataset, rank, size, options);
    std::int64_t number = options.first_step;
    for (Step& step : loader) {
      EXPECT_EQ(step.number, number++);
      EXPECT_EQ(step.epoch, step.number / loader.steps_per_epoch());
      EXPECT_EQ(step.of_epoch, step.number % loader.steps_per_epoch());
      EXPECT_EQ(step.ends_epoch, step.of_epoch == loader.steps_per_epoch() - 1);
      for (std::size_t i = 0; i < step.lanes.size(); ++i) {
        const Lane& lane = step.lanes[i];
        EXPECT_EQ(lane.first, i == 0);
        EXPECT_EQ(lane.last, i + 1 == step.lanes.size());
        EXPECT_EQ(lane.step, step.number);
        EXPECT_EQ(lane.seed, options.seed);
        EXPECT_EQ(lane.total_weight, step.total_weight);
        EXPECT_EQ(lane.data.size(0), lane.samples);
        const auto [at, fresh] =
            pieces.insert({{lane.step, lane.index}, {lane, lane.data, lane.target, lane.samples}});
        EXPECT_TRUE(fresh) << "two workers carry lane " << lane.index;
      }
    }
    EXPECT_EQ(number, loader.steps());
  }
  return pieces;
}

void expect_same(const Pieces& a, const Pieces& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [key, piece] : a) {
    SCOPED_TRACE(::testing::Message() << "step " << key.first << ", lane " << key.second);
    const auto other = b.find(key);
    ASSERT_NE(other, b.end());
    EXPECT_TRUE(torch::equal(piece.data, other->second.data));
    EXPECT_TRUE(torch::equal(piece.target, other->second.target));
    EXPECT_EQ(piece.samples, other->second.samples);
    EXPECT_EQ(piece.info.weight, other->second.info.weight);
    EXPECT_EQ(piece.info.total_weight, other->second.info.total_weight);
  }
}

TEST(Loader, TheSameBitsForEveryNumberOfWorkers) {
  const auto dataset = drawings(107);  // 8 lanes of 4: three steps of 32 and one of 11
  for (const auto& [last_step, lanes] :
       {std::pair(LastStep::short_, 3u * 8 + 5), {LastStep::drop, 3u * 8}, {LastStep::wrap, 4u * 8}}) {
    SCOPED_TRACE(to_string(last_step));
    const LoaderOptions options{.lanes = 8, .lane_batch = 4, .seed = 9, .last_step = last_step, .epochs = 2};
    const Pieces one = collect(dataset, 1, options);
    EXPECT_EQ(one.size(), 2 * lanes);
    for (const int workers : {2, 3, 4, 8}) {
      SCOPED_TRACE(::testing::Message() << workers << " workers");
      expect_same(one, collect(dataset, workers, options));
    }
  }
}

TEST(Loader, LanesAreFullAndEquallyHeavyUnlessAskedForShort) {
  const Pieces pieces = collect(drawings(11), 2, {.lanes = 4, .lane_batch = 2, .augment = false});
  EXPECT_EQ(pieces.size(), 8u);
  for (const auto& [key, piece] : pieces) {
    EXPECT_EQ(piece.samples, 2);
    EXPECT_EQ(piece.info.weight, 1);
    EXPECT_EQ(piece.info.total_weight, 4);
  }
  // Three are left for the second step, so that its second lane ends with the first example of the epoch.
  EXPECT_TRUE(torch::equal(pieces.at({1, 1}).data[1], pieces.at({0, 0}).data[0]));
  EXPECT_TRUE(torch::equal(pieces.at({1, 2}).data[0], pieces.at({0, 0}).data[1]));
  EXPECT_FALSE(torch::equal(pieces.at({1, 1}).data[0], pieces.at({0, 0}).data[0]));
}

TEST(Loader, TheSameBitsInTheSameOrderForEveryNumberOfThreads) {
  const auto dataset = drawings(107);
  LoaderOptions options{.lanes = 8, .lane_batch = 4, .seed = 9, .last_step = LastStep::short_, .epochs = 3};
  const Pieces one = collect(dataset, 2, options);
  for (const int threads : {2, 3, 8})
    for (const int prefetch : {1, 5}) {
      SCOPED_TRACE(::testing::Message() << threads << " threads, " << prefetch << " ahead");
      options.threads = threads;
      options.prefetch = prefetch;
      expect_same(one, collect(dataset, 2, options));
    }
}

TEST(Loader, ResumesInTheMiddleOfAnEpoch) {
  const auto dataset = drawings(107);
  LoaderOptions options{.lanes = 8, .lane_batch = 4, .seed = 9, .last_step = LastStep::short_, .epochs = 2};
  Pieces whole = collect(dataset, 2, options);
  for (const std::int64_t first : {1, 3, 4, 6, 8}) {
    SCOPED_TRACE(first);
    options.first_step = first;
    Pieces rest;
    for (const auto& piece : whole)
      if (piece.first.first >= first) rest.insert(piece);
    expect_same(rest, collect(dataset, 4, options));
  }
}

TEST(Loader, AugmentationIsTheLanesOwn) {
  // One image only: what differs between lanes, steps and seeds is the augmentation.
  Images images{
      .shape = {1, 16, 16}, .classes = 1, .pixels = std::vector<std::uint8_t>(2 * 256), .labels = {0, 0}};
  for (std::size_t i = 0; i < 512; ++i) images.pixels[i] = static_cast<std::uint8_t>(i % 256);
  const auto dataset = std::make_shared<ImageDataset>(std::move(images));
  const LoaderOptions options{.lanes = 2, .lane_batch = 1, .seed = 4, .epochs = 30};
  const Pieces pieces = collect(dataset, 1, options);
  int differ_in_lane = 0;
  int differ_in_step = 0;
  for (std::int64_t step = 0; step < 29; ++step) {
    const torch::Tensor& data = pieces.at({step, 0}).data;
    differ_in_lane += torch::equal(data, pieces.at({step, 1}).data) ? 0 : 1;
    differ_in_step += torch::equal(data, pieces.at({step + 1, 0}).data) ? 0 : 1;
  }
  EXPECT_GT(differ_in_lane, 20);  // 162 placements: few draws agree by chance
  EXPECT_GT(differ_in_step, 20);
  LoaderOptions plain = options;
  plain.augment = false;
  for (const auto& [key, piece] : collect(dataset, 1, plain))
    EXPECT_TRUE(torch::equal(piece.data, dataset->get(std::vector<std::int64_t>{0}, nullptr).data));
}

TEST(Loader, WeightsFollowTheSamples) {
  const auto text =
      std::make_shared<TextDataset>(std::vector<std::uint8_t>(10 * 21 + 1, 'x'), 10);  // 21 windows
  const Pieces pieces = collect(text, 3, {.lanes = 4, .lane_batch = 4, .last_step = LastStep::short_});
  EXPECT_EQ(pieces.size(), 4u + 2u);
  for (int lane = 0; lane < 4; ++lane) {
    EXPECT_EQ(pieces.at({0, lane}).info.weight, 1);
    EXPECT_EQ(pieces.at({0, lane}).info.total_weight, 4);
  }
  EXPECT_EQ(pieces.at({1, 0}).info.weight, 30);
  EXPECT_EQ(pieces.at({1, 1}).info.weight, 20);
  EXPECT_EQ(pieces.at({1, 1}).info.total_weight, 50);
  const LoaderOptions joining{.lanes = 4, .lane_batch = 5, .last_step = LastStep::short_};
  EXPECT_EQ(collect(text, 1, joining).at({0, 0}).info.weight, 60) << "the one that joined";
}

TEST(Loader, AWorkerWithoutLanesStillGetsItsSteps) {
  const auto dataset = drawings(10);  // 8 lanes of 1, then 2 left: lanes 0 and 1
  Loader loader(dataset, 7, 8, {.lane_batch = 1, .last_step = LastStep::short_});
  Step* step = loader.next();
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->lanes.size(), 1u);
  EXPECT_EQ(step->lanes[0].index, 7);
  step = loader.next();
  ASSERT_NE(step, nullptr);
  EXPECT_TRUE(step->lanes.empty());
  EXPECT_EQ(step->samples, 2);
  EXPECT_EQ(step->total_weight, 2);
  EXPECT_TRUE(step->ends_epoch);
  EXPECT_EQ(loader.next(), nullptr);
  EXPECT_EQ(loader.next(), nullptr);
}

// A second loop over it would have no step, without a word.
TEST(Loader, IsGoneThroughOnce) {
  Loader loader(drawings(8), 0, 1, {.lanes = 2, .lane_batch = 2});
  int steps = 0;
  for (const Step& step : loader) {
    steps += step.number == 0 ? 1 : 0;
    break;
  }
  for (const Step& step : loader) steps += static_cast<int>(step.number);  // goes on
  EXPECT_EQ(steps, 1 + 1);
  expect_error<UsageError>([&] { (void)loader.begin(); }, {"gone through once", ".epochs = N"});
}

TEST(Loader, EpochsAndStepsEndIt) {
  const auto dataset = drawings(40);
  const auto count = [&](LoaderOptions options) {
    options.lanes = 2;
    options.lane_batch = 10;
    Loader loader(dataset, 0, 1, options);
    std::int64_t steps = 0;
    while (loader.next() != nullptr) ++steps;
    EXPECT_EQ(steps + options.first_step, std::max(loader.steps(), options.first_step));
    return steps;
  };
  EXPECT_EQ(count({.epochs = 3}), 6);
  EXPECT_EQ(count({.epochs = 3, .steps = 5}), 5);
  EXPECT_EQ(count({.epochs = 3, .steps = 7}), 6);
  EXPECT_EQ(count({.epochs = 0, .steps = 7}), 7);
  EXPECT_EQ(count({.epochs = 3, .first_step = 4}), 2);
  EXPECT_EQ(count({.epochs = 3, .first_step = 9}), 0);
}

TEST(Loader, NamesBadOptions) {
  const auto dataset = drawings(2);
  const auto make = [&](int rank, int size, LoaderOptions options) { Loader(dataset, rank, size, options); };
  expect_error<UsageError>([&] { make(0, 4, {.lanes = 2}); }, {"4 workers for 2 lanes"});
  expect_error<UsageError>([&] { make(2, 2, {}); }, {"worker 2 of 2"});
  expect_error<UsageError>([&] { make(0, 1, {.lane_batch = 0}); }, {"lane_batch = 0"});
  expect_error<UsageError>([&] { make(0, 1, {.epochs = -1}); }, {"epochs = -1"});
  expect_error<UsageError>([&] { make(0, 1, {.epochs = 0}); }, {"epochs = 0 and steps = 0"});
  expect_error<UsageError>([&] { make(0, 1, {.steps = -2}); }, {"steps = -2"});
  expect_error<UsageError>([&] { make(0, 1, {.first_step = -1}); }, {"first_step = -1"});
  expect_error<UsageError>([&] { make(0, 1, {.prefetch = 0}); }, {"prefetch = 0"});
  expect_error<UsageError>([&] { make(0, 1, {.threads = 0}); }, {"threads = 0"});
  expect_error<UsageError>([&] { make(0, 1, {.lane_batch = 3, .last_step = LastStep::drop}); },
                           {"2 examples", "drop", "3 examples or more"});
  expect_error<UsageError>([&] { Loader(nullptr, 0, 1, {}); }, {"without a dataset"});
}

// Counts what was asked for; takes its time, or fails, at a given batch.
class Probe final : public Dataset {
 public:
  explicit Probe(std::int64_t fails_at = -1, int sleep_ms = 0) : fails_at_(fails_at), sleep_ms_(sleep_ms) {}
  std::int64_t size() const override { return 100; }
  Batch get(std::span<const std::int64_t> indices, RandomStream* /*random*/) const override {
    const std::int64_t mine = made_++;
    if (mine == fails_at_) throw std::runtime_error("bad example");
    if (sleep_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms_));
    const torch::Tensor data = torch::zeros({static_cast<std::int64_t>(indices.size())});
    return {data, data};
  }
  std::int64_t made() const { return made_; }

 private:
  std::int64_t fails_at_;
  int sleep_ms_;
  mutable std::atomic<std::int64_t> made_ = 0;
};

void wait_until(const std::function<bool()>& true_now) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!true_now() && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(Loader, MakesAFewStepsAheadAndNoMore) {
  const auto probe = std::make_shared<Probe>();
  Loader loader(probe, 0, 1, {.lane_batch = 1, .prefetch = 3});
  wait_until([&] { return probe->made() == 4; });  // three wait, the fourth is in the thread's hands
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(probe->made(), 4);
  loader.next();
  wait_until([&] { return probe->made() == 5; });
  EXPECT_EQ(probe->made(), 5);
}

// Examples of which some can't be read, ever.
class Broken final : public Dataset {
 public:
  explicit Broken(std::set<std::int64_t> bad) : bad_(std::move(bad)) {}
  std::int64_t size() const override { return 100; }
  Batch get(std::span<const std::int64_t> indices, RandomStream* /*random*/) const override {
    for (const std::int64_t index : indices)
      if (bad_.contains(index)) throw std::out_of_range("bad\nexample");
    const torch::Tensor data = torch::zeros({static_cast<std::int64_t>(indices.size())});
    return {data, data};
  }

 private:
  std::set<std::int64_t> bad_;
};

TEST(Loader, ThrowsWhatTheDatasetMetAfterTheStepsBeforeItAndNamesTheExample) {
  for (const int threads : {1, 2, 5}) {
    SCOPED_TRACE(threads);
    Loader loader(std::make_shared<Broken>(std::set<std::int64_t>{30, 34, 50}), 0, 1,
                  {.lanes = 2, .lane_batch = 4, .shuffle = false, .threads = threads});
    for (std::int64_t step = 0; step < 3; ++step) {
      Step* const got = loader.next();
      ASSERT_NE(got, nullptr);
      EXPECT_EQ(got->number, step);
    }
    for (int i = 0; i < 2; ++i) {
      try {
        loader.next();
        FAIL() << "nothing was thrown";
      } catch (const DatasetError& error) {
        EXPECT_STREQ(error.what(), "step 3, lane 1: example 30: bad example");
        EXPECT_EQ(error.examples(), std::vector<std::int64_t>{30});
        EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
      }
    }
  }
}

// What each example by itself can do: then all that were asked for are named.
TEST(Loader, NamesTheBatchWhereNoSingleExampleFails) {
  Loader loader(std::make_shared<Probe>(0), 0, 1, {.lane_batch = 3, .shuffle = false});
  try {
    loader.next();
    FAIL() << "nothing was thrown";
  } catch (const DatasetError& error) {
    EXPECT_STREQ(error.what(), "step 0, lane 0: examples 0, 1, 2: bad example");
    EXPECT_EQ(error.examples(), (std::vector<std::int64_t>{0, 1, 2}));
  }
}

TEST(Loader, StopsAtAnyTimeWithSeveralThreads) {
  const auto probe = std::make_shared<Probe>(-1, 1);
  for (int taken = 0; taken < 12; ++taken) {
    Loader loader(probe, 0, 1, {.lanes = 2, .lane_batch = 1, .threads = 4});
    for (int i = 0; i < taken; ++i) ASSERT_NE(loader.next(), nullptr);
  }
  EXPECT_LT(probe->made(), 12 * 2 * (12 + 2 + 4));
  EXPECT_EQ(probe.use_count(), 1);
}

// As many at once as there are threads: each waits until the others have come.
TEST(Loader, ThreadsMakeStepsAtOnce) {
  struct Meeting final : Dataset {
    std::int64_t size() const override { return 100; }
    Batch get(std::span<const std::int64_t> indices, RandomStream* /*random*/) const override {
      ++here;
      wait_until([&] { return here >= 3; });
      const torch::Tensor data = torch::zeros({static_cast<std::int64_t>(indices.size())});
      return {data, data};
    }
    mutable std::atomic<int> here = 0;
  };
  const auto meeting = std::make_shared<Meeting>();
  Loader loader(meeting, 0, 1, {.lane_batch = 1, .prefetch = 1, .threads = 3});
  wait_until([&] { return meeting->here >= 3; });
  EXPECT_GE(meeting->here, 3);
  ASSERT_NE(loader.next(), nullptr);
}

TEST(Loader, StopsEarlyWithoutMakingTheRest) {
  const auto probe = std::make_shared<Probe>(-1, 1);
  for (int taken = 0; taken < 4; ++taken) {
    Loader loader(probe, 0, 1, {.lanes = 4, .lane_batch = 1});
    for (int i = 0; i < taken; ++i) loader.next();
  }
  EXPECT_LT(probe->made(), 4 * 4 * 7);  // of 400
  EXPECT_EQ(probe.use_count(), 1);
}

// Takes its time, which begins when the thread that made it waits.
class Awaited final : public Dataset {
 public:
  std::int64_t size() const override { return 100; }
  Batch get(std::span<const std::int64_t> indices, RandomStream* /*random*/) const override {
    wait_until([&] { return asked && state() == 'S'; });
    std::this_thread::sleep_for(kTakes);
    const torch::Tensor data = torch::zeros({static_cast<std::int64_t>(indices.size())});
    return {data, data};
  }
  static constexpr std::chrono::milliseconds kTakes{20};
  std::atomic<bool> asked = false;

 private:
  char state() const {  // as /proc has it: "12 (name) S …"
    std::ifstream file("/proc/self/task/" + std::to_string(caller_) + "/stat");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const std::size_t name_ends = text.rfind(')');
    return name_ends + 2 < text.size() ? text[name_ends + 2] : '?';
  }
  pid_t caller_ = ::gettid();
};

TEST(Loader, TellsHowLongItWaited) {
  const auto awaited = std::make_shared<Awaited>();
  Loader slow(awaited, 0, 1, {.lane_batch = 50, .prefetch = 1});
  awaited->asked = true;
  slow.next();
  EXPECT_GE(slow.waited_ns(), std::chrono::nanoseconds(Awaited::kTakes).count());
  const auto probe = std::make_shared<Probe>();
  Loader fast(probe, 0, 1, {.lane_batch = 1});
  wait_until([&] { return probe->made() == 3; });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  fast.next();
  EXPECT_EQ(fast.waited_ns(), 0);
}

TEST(Loader, CanBeMovedWhileItWorks) {
  Loader a(drawings(12), 0, 1, {.lane_batch = 4});
  ASSERT_NE(a.next(), nullptr);
  Loader b = std::move(a);
  Step* const step = b.next();
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->number, 1);
}

}  // namespace
}  // namespace lockstep
