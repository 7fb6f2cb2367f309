#include "comm/test_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <thread>
#include <utility>

namespace lockstep::testing {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMapping = std::size_t{64} << 20;
constexpr std::chrono::microseconds kSlow{300};  // before each piece of work

void merge(std::vector<std::uint64_t>& into, const std::vector<std::uint64_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t k = 0; k < from.size(); ++k) into[k] = std::max(into[k], from[k]);
}

}  // namespace

struct TestDevice::EventState {
  Clock at;
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;

  bool await(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, timeout, [&] { return over; });
  }
};

struct TestDevice::StreamState {
  StreamState(std::size_t number_, int index_) : number(number_), index(index_) {
    std::thread([this] { serve(); }).detach();  // for as long as the process
  }

  void push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_one();
  }
  void serve() {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !queue.empty(); });
      const std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      work();
    }
  }

  const std::size_t number;
  const int index;
  Clock given;  // what the next piece of work comes after; its own entry counts those that it was given
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
};

struct TestDevice::Block {
  struct Past {
    std::size_t begin, end;
    bool write;
    std::size_t stream;
    std::uint64_t number;
  };
  std::uintptr_t begin = 0;
  std::uintptr_t shift = 0;  // to the mapping of the streams
  std::vector<Past> past = {};
};

TestDevice& TestDevice::get() {
  static auto* const device = new TestDevice;  // its threads never end
  return *device;
}

TestDevice::TestDevice() { add_device_runtime(Device::Kind::custom, *this); }

// Two mappings of some memory: a process may have a few ten thousand of them, and blocks are many more.
void TestDevice::map_more(std::size_t bytes) {
  const int fd = ::memfd_create("test device", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("no memfd");
  void* const shown = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd, 0);
  void* const reached = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (shown == MAP_FAILED || reached == MAP_FAILED) throw std::runtime_error("no mapping");
  next_ = reinterpret_cast<std::uintptr_t>(shown);
  end_ = next_ + bytes;
  shift_ = reinterpret_cast<std::uintptr_t>(reached) - next_;
}

std::shared_ptr<void> TestDevice::allocate(std::size_t bytes, int) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  if (end_ - next_ < rounded) map_more(std::max(rounded, kMapping));
  const std::uintptr_t begin = std::exchange(next_, next_ + rounded);
  blocks_[begin + rounded] = {.begin = begin, .shift = shift_};
  return {reinterpret_cast<void*>(begin), [](void*) {}};
}

std::uintptr_t TestDevice::shift_of(const void* data) const {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.upper_bound(at);
  return block == blocks_.end() || at < block->second.begin ? 0 : block->second.shift;
}

TestDevice::StreamState& TestDevice::new_stream(int index) {
  streams_.push_back(std::make_unique<StreamState>(streams_.size(), index));
  return *streams_.back();
}

namespace {
thread_local std::map<int, void*> own_streams;  // by index, where this thread has one
}

DeviceStream TestDevice::current_stream(int index) {
  const Device device{Device::Kind::custom, index};
  if (const auto own = own_streams.find(index); own != own_streams.end()) return {device, own->second};
  const std::lock_guard lock(mutex_);
  StreamState*& stream = default_streams_[index];
  if (stream == nullptr) stream = &new_stream(index);
  return {device, stream};
}

void TestDevice::use_own_stream(int index) {
  if (own_streams.contains(index)) return;
  const std::lock_guard lock(mutex_);
  own_streams[index] = &new_stream(index);
}

void TestDevice::look(StreamState& stream, const Access& access) {
  const auto at = reinterpret_cast<std::uintptr_t>(access.data);
  const auto found = blocks_.upper_bound(at);
  if (access.bytes == 0 || found == blocks_.end() || at < found->second.begin) return;  // the host's
  Block& block = found->second;
  const std::size_t begin = at - block.begin;
  const std::size_t end = begin + access.bytes;
  const auto before = [&](const Block::Past& past) {
    return past.stream < stream.given.size() && stream.given[past.stream] >= past.number;
  };
  for (const Block::Past& past : block.past)
    if ((access.write || past.write) && past.begin < end && begin < past.end && !before(past))
      hazards_.push_back("stream " + std::to_string(stream.number) + (access.write ? " writes " : " reads ") +
                         std::to_string(access.bytes) + " bytes on custom:" + std::to_string(stream.index) +
                         " that stream " + std::to_string(past.stream) + (past.write ? " writes" : " reads") +
                         ", and nothing orders them");
  std::erase_if(block.past, [&](const Block::Past& past) {
    return begin <= past.begin && past.end <= end && (access.write || !past.write) && before(past);
  });
  block.past.push_back({begin, end, access.write, stream.number, stream.given[stream.number]});
}

void TestDevice::give(const DeviceStream& stream, const std::vector<Access>& touches,
                      std::function<void()> body) {
  auto& state = *static_cast<StreamState*>(stream.handle);
  const std::lock_guard lock(mutex_);
  merge(state.given, host_[state.index]);
  if (state.given.size() <= state.number) state.given.resize(state.number + 1);
  ++state.given[state.number];
  // Reads first: what the same piece of work writes is no hazard to itself, for it is in `given` already.
  for (const bool write : {false, true})
    for (const Access& access : touches)
      if (access.write == write) look(state, access);
  state.push([this, body = std::move(body)] {
    std::this_thread::sleep_for(kSlow);
    try {
      body();
    } catch (...) {
      const std::lock_guard guard(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  });
}

void TestDevice::copy(void* to, const void* from, std::size_t bytes, const DeviceStream& stream) {
  if (bytes == 0) return;  // of nothing, which may be nowhere
  give(stream, {{from, bytes}, {to, bytes, true}},
       [=, this] { std::memcpy(reached(to), reached(from), bytes); });
}

void TestDevice::fill(void* to, std::byte value, std::size_t bytes, const DeviceStream& stream) {
  give(stream, {{to, bytes, true}}, [=, this] { std::memset(reached(to), static_cast<int>(value), bytes); });
}

DeviceEvent TestDevice::record(const DeviceStream& stream) {
  auto event = std::make_shared<EventState>();
  auto& state = *static_cast<StreamState*>(stream.handle);
  const std::lock_guard lock(mutex_);
  event->at = state.given;
  state.push([event] {
    const std::lock_guard guard(event->mutex);
    event->over = true;
    event->changed.notify_all();
  });
  return {stream.device, event};
}

void TestDevice::wait(const DeviceStream& stream, const DeviceEvent& event) {
  auto state = std::static_pointer_cast<EventState>(event.handle);
  auto& waiting = *static_cast<StreamState*>(stream.handle);
  const std::lock_guard lock(mutex_);
  merge(waiting.given, state->at);
  waiting.push([state] { state->await(std::chrono::minutes(1)); });
}

bool TestDevice::passed(const DeviceEvent& event) {
  return std::static_pointer_cast<EventState>(event.handle)->await(std::chrono::milliseconds(0));
}

bool TestDevice::wait_on_host(const DeviceEvent& event, std::chrono::milliseconds timeout) {
  ++host_waits_;
  return await(event, timeout);
}

void TestDevice::wait_uncounted(const DeviceStream& stream) {
  if (!await(record(stream), std::chrono::minutes(1))) throw std::runtime_error("the stream stands still");
}

bool TestDevice::await(const DeviceEvent& event, std::chrono::milliseconds timeout) {
  const auto state = std::static_pointer_cast<EventState>(event.handle);
  if (!state->await(timeout)) return false;
  const std::lock_guard lock(mutex_);
  merge(host_[event.device.index], state->at);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return true;
}

std::vector<std::string> TestDevice::take_hazards() {
  const std::lock_guard lock(mutex_);
  return std::exchange(hazards_, {});
}

}  // namespace lockstep::testing
