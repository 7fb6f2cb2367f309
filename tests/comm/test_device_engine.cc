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
  return can;
}

std::size_t output_bytes(const Call& call, int ranks) {
  const bool all = call.what == Collective::all_gather || call.what == Collective::gather ||
                   call.what == Collective::all_to_all;
  return call.bytes() * static_cast<std::size_t>(all ? ranks : 1);
}

class TestDeviceEngine final : public Engine {
 public:
  TestDeviceEngine(std::shared_ptr<Engine> host, std::shared_ptr<Engine> device)
      : Engine({.name = "test-device",
                .rank = host->rank(),
                .nodes = host->nodes(),
                .naming = host->naming(),
                .can = with_device(host->capabilities()),
                .selector = host->selector()}),
        host_(std::move(host)),
        device_(std::move(device)) {}

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
    return std::make_unique<TestDeviceEngine>(std::move(host), std::move(device));
  }

 private:
  std::shared_ptr<Engine> host_;
  std::shared_ptr<Engine> device_;
};

[[maybe_unused]] const bool test_device_engine_is_linked = add_engine(
    {.profile = {.name = "test-device", .about = "a device for tests", .meets = Meets::over_another},
     .can = [] { return with_device({}); },
     .make =
         [](const Membership& /*who*/, const Knobs& /*knobs*/, std::shared_ptr<Engine> carrier) {
           Call call;
           call.what = Collective::split;
           call.timeout = std::chrono::seconds(20);
           auto device = carrier->split(0, carrier->rank(), "world on its device", call);
           return std::make_unique<TestDeviceEngine>(std::move(carrier), std::move(device));
         }});

}  // namespace

std::vector<Group> test_device_groups(int size) {
  TestDevice::get();
  std::vector<Group> groups(static_cast<std::size_t>(size));
  on_threads(thread_groups(size), [&](const Group& g) {
    auto engine = find_engine("test-device")->make({}, {}, kept_engine_of(g));
    groups[static_cast<std::size_t>(g.rank())] =
        make_group(std::move(engine), "world", std::chrono::seconds(20));
  });
  return groups;
}

}  // namespace lockstep::testing
