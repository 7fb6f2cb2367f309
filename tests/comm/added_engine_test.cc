// An engine that one file adds, this one: LOCKSTEP_ENGINE chooses it by name, alone and inside nodes, and
// nothing in the library knows of it.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <random>

#include "comm/engine/registry.h"
#include "comm/expect_error.h"
#include "comm/form_members.h"
#include "comm/thread_ranks.h"
#include "net/secret.h"

namespace lockstep::testing {
namespace {

std::atomic<int> toy_calls = 0;

Capabilities with_devices(Capabilities can) {
  can.devices.add({Device::Kind::cuda, Device::Kind::custom});
  return can;
}

// Passes everything on to shared memory; on devices nothing happens.
class ToyEngine final : public Engine {
 public:
  explicit ToyEngine(std::unique_ptr<Engine> shm)
      : Engine({.name = "toy",
                .rank = shm->rank(),
                .nodes = shm->nodes(),
                .naming = shm->naming(),
                .can = with_devices(shm->capabilities()),
                .selector = shm->selector()}),
        shm_(std::move(shm)) {}

  CommMemory allocate(std::size_t bytes, Device device) override { return shm_->allocate(bytes, device); }
  bool reaches(const void* data) const override { return shm_->reaches(data); }
  double expected_seconds(const Call& call) const override { return shm_->expected_seconds(call); }
  PeerView peer(int rank) const override { return shm_->peer(rank); }
  void tell_failure(const Error& error) noexcept override { shm_->fail(error); }
  void check(News news) override { shm_->check(news); }
  Composable* composable() override { return shm_->composable(); }

 protected:
  void execute(const Call& call) override {
    ++toy_calls;
    if (call.device.kind == Device::Kind::cpu) shm_->run(call);
  }
  double meet(const Call& call) override { return shm_->open(call); }
  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) override {
    auto part = shm_->split(colour, key, name, call);
    return part == nullptr ? nullptr : std::make_unique<ToyEngine>(std::move(part));
  }

 private:
  std::unique_ptr<Engine> shm_;
};

[[maybe_unused]] const bool added = add_engine(
    {.profile = {.name = "toy", .about = "shared memory by another name", .inside = true},
     .can = [] { return find_engine("shm")->can(); },
     .make = [](const Membership& who, const Knobs& knobs, const auto& carrier) -> std::unique_ptr<Engine> {
       return std::make_unique<ToyEngine>(find_engine("shm")->make(who, knobs, carrier));
     }});

// Numbers whose sum depends on the order of adding them up.
std::vector<float> rough(int rank) {
  std::mt19937 dice(static_cast<unsigned>(rank) + 1);
  std::vector<float> x(50'000);
  for (float& value : x) value = std::ldexp(static_cast<float>(dice()), static_cast<int>(dice() % 40) - 50);
  return x;
}

std::vector<float> sum_of_all(const Group& g) {
  auto x = rough(g.rank());
  g.all_reduce(buffer(x));
  return x;
}

std::vector<float> expected_sum(int size) {
  std::vector<float> sum;
  on_threads(thread_groups(size), [&](const Group& g) {
    const auto x = sum_of_all(g);
    if (g.rank() == 0) sum = x;
  });
  return sum;
}

class AddedEngine : public FormsGroups {};

TEST_F(AddedEngine, IsChosenByItsName) {
  set("LOCKSTEP_ENGINE", "toy");
  const std::vector<float> expected = expected_sum(3);
  const int before = toy_calls;
  members(3, [&](int rank) {
    const Group g = form_group({.id = "toys", .size = 3, .rank = rank}, kAmple);
    EXPECT_STREQ(g.engine(), "toy");
    EXPECT_EQ(sum_of_all(g), expected);
    expect_works(g);
    const Group part = g.split(rank % 2);
    EXPECT_STREQ(part.engine(), "toy");
    expect_works(part);
  });
  EXPECT_GT(toy_calls, before + 3);
}

TEST_F(AddedEngine, IsInsideNodesWithAnotherAcross) {
  set("LOCKSTEP_ENGINE", "toy+tcp");
  set("LOCKSTEP_SECRET", net::Secret::make().hex());
  set("LOCKSTEP_NODE_SIZE", "2");
  const std::string endpoint = free_endpoint();
  const std::vector<float> expected = expected_sum(4);
  const int before = toy_calls;
  members(4, [&](int rank) {
    const Group g = form_group({.id = "toys", .size = 4, .rank = rank, .endpoint = endpoint}, kAmple);
    EXPECT_STREQ(g.engine(), "toy+tcp");
    EXPECT_EQ(sum_of_all(g), expected);
    auto x = rough(rank);
    g.all_reduce(buffer(x), {.algorithm = "by-node"});  // in the memory that the toy lends
    EXPECT_EQ(x, expected);
    g.broadcast(buffer(x), 1, {.algorithm = "by-node"});
    expect_works(g);
    const Group part = g.split(0, -rank);
    EXPECT_STREQ(part.engine(), "toy+tcp");
    expect_works(part);
  });
  EXPECT_GT(toy_calls, before);
}

TEST_F(AddedEngine, IsRefusedByWhatItDeclares) {
  const auto form = [] {
    (void)form_group({.id = "wide", .size = 2, .rank = 0, .endpoint = "10.0.0.1:1"}, kAmple);
  };
  set("LOCKSTEP_ENGINE", "tcp+toy");
  expect_error<UsageError>(form, {"tcp+toy: toy can't be across nodes",
                                  "accepted: auto, shm, tcp, toy, shm+tcp, tcp+tcp, toy+tcp"});
  set("LOCKSTEP_ENGINE", "toy");
  expect_error<UsageError>(form, {"LOCKSTEP_ENGINE=toy, but members of group wide may be on several machines",
                                  "accepted for several machines: auto, tcp, shm+tcp, tcp+tcp, toy+tcp"});
}

// A device that is nothing but its events, and counts those of other kinds that come to it.
class EventsAlone final : public DeviceRuntime {
 public:
  explicit EventsAlone(Device::Kind kind) : kind_(kind) { add_device_runtime(kind, *this); }
  std::shared_ptr<void> allocate(std::size_t, int) override { return nullptr; }
  DeviceStream current_stream(int index) override { return {{kind_, index}, nullptr}; }
  void use_own_stream(int) override {}
  void copy(void*, const void*, std::size_t, const DeviceStream&) override {}
  void fill(void*, std::byte, std::size_t, const DeviceStream&) override {}
  DeviceEvent record(const DeviceStream& stream) override { return {stream.device, std::make_shared<int>()}; }
  void wait(const DeviceStream&, const DeviceEvent& event) override {
    ++(event.device.kind == kind_ ? waits : strangers);
  }
  bool passed(const DeviceEvent&) override { return true; }
  std::optional<std::int64_t> time_of(const DeviceEvent&) override { return std::nullopt; }
  bool wait_on_host(const DeviceEvent&, std::chrono::milliseconds) override { return true; }

  std::atomic<int> waits = 0;
  std::atomic<int> strangers = 0;

 private:
  Device::Kind kind_;
};

TEST_F(AddedEngine, WaitsOnADeviceForCallsOfItsKind) {
  static EventsAlone cuda(Device::Kind::cuda);
  static EventsAlone custom(Device::Kind::custom);
  set("LOCKSTEP_ENGINE", "toy");
  members(2, [&](int rank) {
    const Group g = form_group({.id = "toys", .size = 2, .rank = rank}, kAmple);
    float x = 0;
    for (const Device::Kind kind : {Device::Kind::cuda, Device::Kind::custom, Device::Kind::cuda})
      g.all_reduce(Buffer{&x, 1, DType::f32, {kind, 0}});
  });
  EXPECT_EQ(cuda.waits, 2) << "of each rank, for its first call there";
  EXPECT_EQ(cuda.strangers + custom.strangers, 0);
}

TEST_F(AddedEngine, IsListed) {
  const auto engines = all_engines();
  EXPECT_STREQ(engines.back().profile.name, "toy");
  EXPECT_EQ(engines.back().missing, "");
  EXPECT_FALSE(engines.back().can.offers.empty());
}

// As a program of a job: init() finds everything.
int work() {
  const Group world = init();
  const std::string asked = std::getenv("LOCKSTEP_ENGINE");
  auto x = sum_of_all(world);
  world.broadcast(buffer(x), 3, {.algorithm = asked == "toy" ? "" : "by-node"});
  const bool right = world.engine() == asked && toy_calls > 0 && x == expected_sum(4);
  if (!right) std::fprintf(stderr, "%s instead of %s, or its sum\n", world.engine(), asked.c_str());
  world.barrier();
  return right ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "worker") return lockstep::testing::work();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
