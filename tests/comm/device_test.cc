// What lockstep/comm/device.h, work.h and group.h promise of calls on a device, on the test device.
#include <unistd.h>

#include <latch>
#include <numeric>
#include <optional>

#include "comm/engine/registry.h"
#include "comm/expect_error.h"
#include "comm/test_device.h"
#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"
#include "lockstep/base/clock.h"

namespace lockstep::testing {
namespace {

using Floats = std::vector<float>;
constexpr std::size_t kElements = 1000;

Buffer on(const CommMemory& memory) {
  return {memory.data(), memory.bytes() / sizeof(float), DType::f32, memory.device()};
}

// y = factor * x + y on the current stream of the memory's device: the processor's too.
void add_to(const Buffer& y, const Buffer& x, float factor) {
  const auto body = [=](float* to, const float* from) {
    for (std::size_t i = 0; i < y.count; ++i) to[i] += factor * from[i];
  };
  auto* const to = static_cast<float*>(y.data);
  const auto* const from = static_cast<const float*>(x.data);
  if (y.device.kind == Device::Kind::cpu) return body(to, from);
  TestDevice& device = TestDevice::get();
  device.give(device.current_stream(y.device.index),
              {{from, x.bytes()}, {to, y.bytes()}, {to, y.bytes(), true}},
              [=, &device] { body(device.reached(to), device.reached(from)); });
}

void put(const Buffer& to, const Floats& values) {
  DeviceRuntime& runtime = runtime_of(to.device);
  runtime.copy(to.data, values.data(), to.bytes(), runtime.current_stream(to.device.index));
}

Floats values_of(const Buffer& from) {
  DeviceRuntime& runtime = runtime_of(from.device);
  const DeviceStream stream = runtime.current_stream(from.device.index);
  Floats values(from.count);
  runtime.copy(values.data(), from.data, from.bytes(), stream);
  EXPECT_TRUE(runtime.wait_on_host(runtime.record(stream), std::chrono::seconds(20)));
  return values;
}

Floats some(int rank, int step) {
  Floats values(kElements);
  for (std::size_t i = 0; i < kElements; ++i)
    values[i] = 1.0F / static_cast<float>(1 + (i + static_cast<std::size_t>(3 * rank + 7 * step)) % 97);
  return values;
}

enum class Waits { yes, never };

// Steps of training by hand: a gradient is made on the device, reduced, and read by an update there.
Floats train(const Group& g, Device device, Waits waits) {
  const CommMemory gradient = g.allocate(kElements * sizeof(float), device);
  const CommMemory bucket = g.allocate(kElements * sizeof(float), device);
  const CommMemory parameter = g.allocate(kElements * sizeof(float), device);
  std::vector<Floats> given;  // the streams may still read them
  for (int step = 0; step < 4; ++step) given.push_back(some(g.rank(), step));
  const std::int64_t waits_before = TestDevice::get().host_waits();
  for (const Floats& values : given) {
    put(on(gradient), values);
    add_to(on(bucket), on(gradient), 0.5F);
    const Work reduced = g.all_reduce_async(on(bucket), {.op = ReduceOp::avg});
    if (waits == Waits::yes) reduced.wait();
    add_to(on(parameter), on(bucket), -0.1F);
  }
  if (device.kind != Device::Kind::cpu && g.rank() == 0) {
    // Of no rank: all are threads of this process.
    EXPECT_EQ(TestDevice::get().host_waits(), waits_before);
  }
  g.barrier();  // nobody reads its results, and waits for them, before all have looked
  return values_of(on(parameter));
}

TEST(Device, AStepGoesInStreamOrderWithoutAHostWaitAndHasTheProcessorsBits) {
  std::vector<Floats> plain(3);
  std::vector<Floats> streamed(3);
  on_threads(thread_groups(3),
             [&](const Group& g) { plain[static_cast<std::size_t>(g.rank())] = train(g, {}, Waits::yes); });
  on_threads(test_device_groups(3), [&](const Group& g) {
    streamed[static_cast<std::size_t>(g.rank())] = train(g, test_device(g), Waits::yes);
  });
  EXPECT_EQ(streamed, plain);
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
  EXPECT_NE(plain[0], Floats(kElements));
}

#ifndef __SANITIZE_THREAD__  // which would catch it, too
TEST(Device, AMissingWaitIsCaught) {
  on_threads(test_device_groups(2), [&](const Group& g) { (void)train(g, test_device(g), Waits::never); });
  const std::vector<std::string> hazards = TestDevice::get().take_hazards();
  ASSERT_FALSE(hazards.empty());
  EXPECT_NE(hazards[0].find("and nothing orders them"), std::string::npos) << hazards[0];
}
#endif

TEST(Device, TheHostCannotTouchItsMemory) {
  const std::shared_ptr<void> memory = TestDevice::get().allocate(64, 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(::write(ends[1], memory.get(), 1), -1);  // the kernel finds out without a crash
  EXPECT_EQ(errno, EFAULT);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Device, OneThatTheEngineDoesNotDeclareIsRefusedInOneLine) {
  TestDevice::get();
  on_threads(thread_groups(2), [](const Group& g) {
    const std::shared_ptr<void> memory = TestDevice::get().allocate(64, g.rank());
    const Buffer x{memory.get(), 4, DType::f32, test_device(g)};
    const std::string why =
        "the shm engine does not work on custom:" + std::to_string(g.rank()) + "; accepted: cpu";
    expect_error<UsageError>([&] { g.all_reduce(x); }, {"all_reduce: " + why});
    expect_error<UsageError>([&] { (void)g.all_reduce_async(x); }, {"all_reduce: " + why});
    expect_error<UsageError>([&] { (void)g.allocate(64, test_device(g)); }, {"allocate: " + why});
    expect_error<UsageError>(
        [&] {
          (void)runtime_of({Device::Kind::cuda, 0});
        },
        {"runtime for cuda:0", "it has: cpu, custom"});
    expect_error<UsageError>([&] { (void)gather_elements(g, x); }, {"custom:", "accepted: on cpu"});
    EXPECT_EQ(g.all_reduce(1), 2);
  });
}

TEST(Device, ItsEngineIsListedWithIt) {
  for (const EngineView& engine : all_engines())
    EXPECT_EQ(engine.can.devices.has(Device::Kind::custom), std::string(engine.profile.name) == "test-device")
        << engine.profile.name;
  EXPECT_NE(find_engine("test-device"), nullptr);
}

TEST(Device, BlockingAndAsynchronousCallsKeepTheirOrderOnIt) {
  on_threads(test_device_groups(3), [](const Group& g) {
    const CommMemory memory = g.allocate(kElements * sizeof(float), test_device(g));
    const Floats ones(kElements, 1);
    put(on(memory), ones);
    std::vector<Work> works;
    works.push_back(g.all_reduce_async(on(memory)));
    g.all_reduce(on(memory));  // on this thread's stream, behind the one on the group's
    works.push_back(g.all_reduce_async(on(memory)));
    when_all(works).wait();
    EXPECT_EQ(values_of(on(memory)), Floats(kElements, 27));
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

TEST(Device, EveryCollectiveHasTheProcessorsBitsOnIt) {
  const auto results = [](const Group& g, Device device) {
    const std::size_t own = static_cast<std::size_t>(g.rank()) * 100;
    const CommMemory memory = g.allocate(300 * sizeof(float), device);
    const CommMemory other = g.allocate(300 * sizeof(float), device);
    const Buffer all = on(memory);
    const Buffer part{static_cast<float*>(all.data) + own, 100, DType::f32, device};
    const Floats values = some(g.rank(), 5);  // longer, and there until the stream has read it
    put(all, values);
    std::vector<Floats> seen;
    const auto look = [&](const Work& work) {
      work.wait();
      seen.push_back(values_of(all));
    };
    look(g.reduce_scatter_async(all, part, {.op = ReduceOp::avg, .divisor = 7}));
    look(g.all_gather_async(part, all));
    look(g.all_to_all_async(all, on(other)));
    look(g.all_reduce_async(on(other), all, {.op = ReduceOp::max}));
    look(g.broadcast_async(all, 1));
    look(g.reduce_async(on(other), all, 2));
    look(g.scatter_async(on(other), part, 0));
    look(g.gather_async(part, all, 2));
    if (g.rank() == 0) g.send(part, 2);
    if (g.rank() == 2) look(g.recv_async(part, 0));
    return seen;
  };
  std::vector<std::vector<Floats>> plain(3);
  std::vector<std::vector<Floats>> streamed(3);
  on_threads(thread_groups(3),
             [&](const Group& g) { plain[static_cast<std::size_t>(g.rank())] = results(g, {}); });
  on_threads(test_device_groups(3), [&](const Group& g) {
    streamed[static_cast<std::size_t>(g.rank())] = results(g, test_device(g));
  });
  for (std::size_t r = 0; r < 3; ++r) {
    ASSERT_EQ(streamed[r].size(), plain[r].size());
    for (std::size_t k = 0; k < plain[r].size(); ++k)
      EXPECT_EQ(streamed[r][k], plain[r][k]) << "rank " << r << ", call " << k;
  }
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

TEST(Device, WhatFollowsOnACallFollowsOnTheStream) {
  on_threads(test_device_groups(2), [](const Group& g) {
    const CommMemory x = g.allocate(kElements * sizeof(float), test_device(g));
    const CommMemory sum = g.allocate(kElements * sizeof(float), test_device(g));
    const CommMemory all = g.allocate(2 * kElements * sizeof(float), test_device(g));
    const Floats ones(kElements, 1);
    put(on(x), ones);
    const Work chain = g.all_reduce_async(on(x)).then([&] { add_to(on(sum), on(x), 10); }).then([&] {
      return g.all_gather_async(on(sum), on(all));
    });
    when_all({chain, Work()}).wait();
    add_to(on(x), on(all), 0);  // reads what the chain wrote
    EXPECT_EQ(values_of(on(all)), Floats(2 * kElements, 20));
    EXPECT_TRUE(chain.done());
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

// Rank 0's group is held up by rank 1, so that what follows on the call is given before the call runs.
TEST(Device, ABlockingCallComesAfterWhatFollowedOnTheCallBefore) {
  std::latch given(1);
  on_threads(test_device_groups(2), [&](const Group& g) {
    const CommMemory x = g.allocate(kElements * sizeof(float), test_device(g));
    const Floats ones(kElements, 1);
    put(on(x), ones);
    if (g.rank() == 1) given.wait();
    const Work held = g.barrier_async();
    const Work doubled = g.all_reduce_async(on(x)).then([&] { add_to(on(x), on(x), 1); });
    if (g.rank() == 0) given.count_down();
    g.all_reduce(on(x));  // on this thread's stream; what doubles is on the group's
    EXPECT_EQ(values_of(on(x)), Floats(kElements, 8));
    when_all({held, doubled}).wait();
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

// Likewise.
TEST(Device, WhoWaitsForWhatFollowedComesAfterIt) {
  std::latch given(1);
  on_threads(test_device_groups(2), [&](const Group& g) {
    const CommMemory x = g.allocate(kElements * sizeof(float), test_device(g));
    const CommMemory y = g.allocate(kElements * sizeof(float), test_device(g));
    const Floats ones(kElements, 1);
    put(on(x), ones);
    if (g.rank() == 1) given.wait();
    const Work held = g.barrier_async();
    const Work doubled = g.all_reduce_async(on(x)).then([&] { add_to(on(x), on(x), 1); });
    if (g.rank() == 0) given.count_down();
    doubled.wait();
    add_to(on(y), on(x), 1);
    EXPECT_EQ(values_of(on(y)), Floats(kElements, 4));
    held.wait();
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

TEST(Device, WhatFollowsOnWorkThatIsDoneComesAfterItOnTheCallersStream) {
  on_threads(test_device_groups(2), [](const Group& g) {
    const CommMemory x = g.allocate(kElements * sizeof(float), test_device(g));
    const CommMemory y = g.allocate(kElements * sizeof(float), test_device(g));
    const Floats ones(kElements, 1);
    put(on(x), ones);
    const Work reduced = g.all_reduce_async(on(x));
    while (!reduced.done()) std::this_thread::yield();
    reduced.then([&] { add_to(on(y), on(x), 1); }).wait();
    EXPECT_EQ(values_of(on(y)), Floats(kElements, 2));
  });
  EXPECT_EQ(TestDevice::get().take_hazards(), std::vector<std::string>());
}

// by-node adds up with the processor, whatever the engines inside and across could do.
TEST(Device, AGroupOfTwoLevelsRefusesIt) {
  const std::vector<int> nodes = {0, 0, 1, 1};
  auto wires = tcp_threads(nodes, net::Security::plaintext, kWirePatience);
  std::vector<Group> groups(nodes.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < nodes.size(); ++r)
      threads.emplace_back([&, r] {
        Call call;
        call.what = Collective::split;
        call.timeout = kWirePatience;
        auto flat = find_engine("test-device")->make({}, {}, std::move(wires[r]));
        auto inside = flat->split(nodes[r], static_cast<int>(r), "world/inside", call);
        groups[r] = make_group(NodeEngine::make("test-device+test-device", std::move(flat), std::move(inside),
                                                part_of_flat_engine, "world", call),
                               "world", kWirePatience);
      });
  }
  on_threads(std::move(groups), [](const Group& g) {
    expect_error<UsageError>(
        [&] { (void)g.allocate(64, test_device(g)); },
        {"allocate: the test-device+test-device engine does not work on custom:", "accepted: cpu"});
    EXPECT_EQ(g.all_reduce(1), 4);
  });
}

TEST(Device, WorkEndsForTheHostBeforeItEndsOnIt) {
  TestDevice& device = TestDevice::get();
  const DeviceStream stream = device.current_stream(0);
  std::atomic<bool> go = false;
  std::atomic<bool> over = false;
  device.give(stream, {}, [&] {
    while (!go) std::this_thread::yield();
    over = true;
  });
  WorkPromise promise;
  promise.set_done({}, {{device.record(stream), "a slow kernel", std::chrono::milliseconds(50)}});
  const Work work = promise.work();
  work.wait();
  EXPECT_TRUE(work.wait_for(std::chrono::milliseconds(1)));
  EXPECT_FALSE(over);
  EXPECT_FALSE(work.done());
  expect_error<TimeoutError>([&] { work.wait_on_host(); },
                             {"a slow kernel has not ended on custom:0 within 0.05 s"});
  go = true;
  EXPECT_TRUE(device.wait_on_host(device.record(stream), std::chrono::seconds(20)));
  work.wait_on_host();
  EXPECT_TRUE(over);
  EXPECT_TRUE(work.done());
}

TEST(Device, WhatFailsOnItIsToldWhoWaitsOnTheHost) {
  TestDevice& device = TestDevice::get();
  const DeviceStream stream = device.current_stream(0);
  device.give(stream, {}, [] { throw SystemError("the kernel fell over"); });
  WorkPromise promise;
  promise.set_done({}, {{device.record(stream), "a kernel", std::chrono::seconds(20)}});
  expect_error<SystemError>([&] { promise.work().wait_on_host(); }, {"the kernel fell over"});
}

TEST(Device, TheProcessorIsOneToo) {
  const Device host;
  EXPECT_EQ(to_string(host), "cpu");
  DeviceRuntime& runtime = runtime_of(host);
  const std::shared_ptr<void> memory = runtime.allocate(8, 0);
  const DeviceStream stream = runtime.current_stream(0);
  runtime.fill(memory.get(), std::byte{3}, 8, stream);
  char copied[8] = {};
  runtime.copy(copied, memory.get(), 8, stream);
  EXPECT_EQ(std::string(copied, 8), std::string(8, 3));
  const DeviceEvent event = runtime.record(stream);
  EXPECT_FALSE(event);
  runtime.wait(stream, event);
  EXPECT_TRUE(runtime.passed(event) && runtime.wait_on_host(event, {}));
  for (int i = 0; i < 2; ++i) {  // the second where the first was
    const std::shared_ptr<void> fresh = runtime.allocate(64, 0);
    EXPECT_EQ(std::string(static_cast<const char*>(fresh.get()), 64), std::string(64, '\0'));
    runtime.fill(fresh.get(), std::byte{1}, 64, stream);
  }
  expect_error<SystemError>([&] { (void)runtime.allocate(~std::size_t{0} - 5, 0); },
                            {"no memory for 18446744073709551610 bytes"});
}

// Memory of one would be given to the other.
TEST(Device, AKindHasOneRuntime) {
  TestDevice& device = TestDevice::get();
  for (const Device::Kind kind : {Device::Kind::cpu, Device::Kind::custom})
    expect_error<UsageError>([&] { add_device_runtime(kind, device); },
                             {"there is a runtime for " + std::string(to_string(kind)) + " already"});
  EXPECT_EQ(&runtime_of({Device::Kind::custom, 0}), &device);
}

}  // namespace
}  // namespace lockstep::testing
