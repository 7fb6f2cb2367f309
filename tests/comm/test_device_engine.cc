// The engine "test-device", added as any other: calls on host memory go to an engine of ours, those on the
// device to a second one, from the thread of the stream that they were put on.
#include "comm/engine/registry.h"
#include "comm/test_device.h"
#include "comm/thread_ranks.h"
#include "comm/world/group_impl.h"

namespace lockstep::testing {
namespace {

Capabilities with_device(Capabilities can) {
  can.devices.add(Device::Kind::custom);
  can.stream_barrier = true;
  return can;
}

std::size_t output_bytes(const Call& call, int ranks) {
  const bool all = call.what == Collective::all_gather || call.what == Collective::gather ||
                   call.what == Collective::all_to_all;
  return call.bytes() * static_cast<std::size_t>(all ? ranks : 1);
}

// Ranks are threads: a block's address is all that has to be told.
class TestCommons final : public DeviceCommons {
 public:
  explicit TestCommons(TestCards cards) : cards_(cards) {}
  std::string identity(Device device) override {
    return cards_ == TestCards::one ? "the card" : "card " + std::to_string(device.index);
  }
  std::string share(std::size_t bytes, Device device) override {
    return std::to_string(
        reinterpret_cast<std::uintptr_t>(TestDevice::get().allocate(bytes, device.index).get()));
  }
  CommMemory hold(const std::string& found, std::size_t bytes, Device device) override {
    return {std::shared_ptr<void>(reinterpret_cast<void*>(std::stoull(found)), [](void*) {}), bytes, device};
  }

 private:
  TestCards cards_;
};

class TestDeviceEngine final : public Engine {
 public:
  TestDeviceEngine(std::shared_ptr<Engine> host, std::shared_ptr<Engine> device, TestCards cards)
      : Engine({.name = "test-device",
                .rank = host->rank(),
                .nodes = host->nodes(),
                .naming = host->naming(),
                .can = with_device(host->capabilities()),
                .selector = host->selector(),
                .device_commons = std::make_shared<TestCommons>(cards)}),
        host_(std::move(host)),
        device_(std::move(device)),
        cards_(cards) {}

  CommMemory allocate(std::size_t bytes, Device device) override {
    if (device.kind == Device::Kind::cpu) return host_->allocate(bytes, device);
    return {TestDevice::get().allocate(bytes, device.index), bytes, device};
  }
  bool reaches(const void* data) const override { return host_->reaches(data); }
  double expected_seconds(const Call& call) const override { return host_->expected_seconds(call); }
  PeerView peer(int rank) const override { return host_->peer(rank); }
  void tell_failure(const Error& error) noexcept override { host_->fail(error); }
  void check(News news) override { host_->check(news); }
  Composable* composable() override { return nullptr; }

 protected:
  void execute(const Call& call) override {
    if (call.device.kind == Device::Kind::cpu) return host_->run(call);
    TestDevice& device = TestDevice::get();
    if (call.what == Collective::barrier) return put_barrier(call);
    Call inner = call;
    inner.in = device.reached(call.in);
    inner.out = device.reached(call.out);
    inner.device = {};
    inner.stream = {};
    inner.flight = nullptr;  // they are of the thread that made the call
    inner.timing = nullptr;
    inner.stall = nullptr;
    device.give(call.stream,
                {{call.in, input_bytes(call.what, call.bytes(), size())},
                 {call.out, output_bytes(call, size()), true}},
                [inner, engine = device_] { engine->run(inner); });
  }
  double meet(const Call& call) override { return host_->open(call); }
  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) override {
    auto host = host_->split(colour, key, name, call);
    auto device = device_->split(colour, key, name + " on its device", call);
    if (host == nullptr) return nullptr;
    return std::make_unique<TestDeviceEngine>(std::move(host), std::move(device), cards_);
  }

 private:
  // Hosts tell each other where their streams are, and each stream waits for the others'.
  void put_barrier(const Call& call) {
    TestDevice& device = TestDevice::get();
    const DeviceEvent mine = device.record(call.stream);
    const DeviceEvent* const place = &mine;
    std::vector<const DeviceEvent*> all(static_cast<std::size_t>(size()));
    Call part = call;
    part.what = Collective::all_gather;
    part.in = &place;
    part.out = all.data();
    part.count = sizeof place;
    part.dtype = DType::u8;
    part.device = {};
    part.stream = {};
    part.flight = nullptr;
    part.timing = nullptr;
    part.whole = &call;
    host_->run(part);
    for (const DeviceEvent* const event : all)
      if (event != &mine) device.wait(call.stream, *event);
    host_->open(part);  // nobody needs the events any more
  }

  std::shared_ptr<Engine> host_;
  std::shared_ptr<Engine> device_;
  TestCards cards_;
};

thread_local TestCards cards_made = TestCards::one_each;  // of the next engine

[[maybe_unused]] const bool test_device_engine_is_linked = add_engine(
    {.profile = {.name = "test-device", .about = "a device for tests", .meets = Meets::over_another},
     .can = [] { return with_device({}); },
     .make =
         [](const Membership& /*who*/, const Knobs& /*knobs*/, std::shared_ptr<Engine> carrier) {
           Call call;
           call.what = Collective::split;
           call.timeout = std::chrono::seconds(20);
           auto device = carrier->split(0, carrier->rank(), "world on its device", call);
           return std::make_unique<TestDeviceEngine>(std::move(carrier), std::move(device), cards_made);
         }});

}  // namespace

std::vector<Group> test_device_groups(int size, TestCards cards) {
  TestDevice::get();
  std::vector<Group> groups(static_cast<std::size_t>(size));
  on_threads(thread_groups(size), [&](const Group& g) {
    cards_made = cards;
    auto engine = find_engine("test-device")->make({}, {}, kept_engine_of(g));
    cards_made = TestCards::one_each;
    groups[static_cast<std::size_t>(g.rank())] =
        make_group(std::move(engine), "world", std::chrono::seconds(20));
  });
  return groups;
}

}  // namespace lockstep::testing
