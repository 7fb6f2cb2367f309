#include "parallel/gather_line.h"

#include <algorithm>
#include <utility>

#include "grad/waited_for.h"
#include "lockstep/base/error.h"
#include "parallel/gathered_memory.h"
#include "parallel/shard_store.h"
#include "parallel/stream_points.h"

namespace lockstep {

GatherLine::GatherLine(Group group, Device device)
    : group_(std::move(group)),
      device_(device),
      said_(static_cast<std::size_t>(group_.size())),
      thread_([this] { work(); }) {}

GatherLine::~GatherLine() { stop(); }

void GatherLine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (!thread_.joinable()) return;
  thread_.join();
  try {
    come_behind(device_, last_);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a device that failed writes nothing any more
  }
}

int GatherLine::add(Source source) {
  const std::lock_guard lock(mutex_);
  sources_.push_back(std::move(source));
  arrived_.emplace_back();
  return static_cast<int>(sources_.size()) - 1;
}

void GatherLine::ask(int bucket, std::byte* memory) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    wishes_.push_back({bucket, memory, point_of_stream(device_)});
    if (store_ != nullptr) store_->begin_passes();
  }
  changed_.notify_all();
}

void GatherLine::wait(int bucket) {
  std::unique_lock lock(mutex_);
  if (store_ != nullptr) store_->begin_wait();
  changed_.wait(lock, [&] {
    return failure_ != nullptr ||
           std::ranges::none_of(wishes_, [&](const Wish& wish) { return wish.bucket == bucket; });
  });
  if (store_ != nullptr) store_->end_wait();
  if (failure_) std::rethrow_exception(failure_);
  come_behind(device_, arrived_[static_cast<std::size_t>(bucket)]);
}

void GatherLine::serve() {
  {
    const std::lock_guard lock(mutex_);
    serving_ = true;
    served_ = point_of_stream(device_);
    if (store_ != nullptr) store_->begin_passes();
  }
  changed_.notify_all();
}

void GatherLine::wait_over() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ != nullptr || !serving_; });
  if (failure_) std::rethrow_exception(failure_);
  come_behind(device_, last_);
}

std::size_t GatherLine::scratch_bytes() const {
  const std::lock_guard lock(mutex_);
  return scratch_.bytes();
}

void GatherLine::work() {
  bool has_stream = device_.kind == Device::Kind::cpu;
  for (;;) {
    Wish wish{};
    bool wants = false;
    std::int32_t next = kServes;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !wishes_.empty() || serving_; });
      if (stop_ || failure_) return;
      wants = !wishes_.empty();
      if (wants) wish = wishes_.front();
      if (wishes_.size() > 1) next = wishes_[1].bucket;
    }
    try {
      if (!std::exchange(has_stream, true)) runtime_of(device_).use_own_stream(device_.index);
      round(wants ? &wish : nullptr, next);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

void GatherLine::round(const Wish* own, std::int32_t next) {
  const std::int32_t wanted = own != nullptr ? own->bucket : broken_ ? kServesZeros : kServes;
  if (store_ != nullptr && own != nullptr) store_->expect(own->bucket);
  group_.all_gather(ConstBuffer(&wanted, 1, DType::i32), Buffer(said_.data(), said_.size(), DType::i32),
                    {.purpose = own != nullptr ? sources_[static_cast<std::size_t>(wanted)].what
                                               : "until no worker gathers parameters"});
  const auto first = std::ranges::find_if(said_, [](std::int32_t said) { return said >= 0; });
  if (first == said_.end()) {
    if (std::ranges::count(said_, kServesZeros) > 0) tell_broken();
    const std::lock_guard lock(mutex_);
    serving_ = false;
    if (store_ != nullptr && wishes_.empty()) store_->rest();
    return;
  }
  const auto other =
      std::ranges::find_if(said_, [&](std::int32_t said) { return said >= 0 && said != *first; });
  if (other != said_.end()) {
    const auto says = [&](auto which) {
      return group_.named(static_cast<int>(which - said_.begin())) + " needs " +
             sources_[static_cast<std::size_t>(*which)].what;
    };
    throw MismatchError(says(first) + ", " + says(other) +
                        "; accepted: all workers run the same units in the same order (parallel/units.h)");
  }
  const Source& source = sources_[static_cast<std::size_t>(*first)];
  if (own == nullptr && scratch_.bytes() < source.bytes(group_.size())) {
    CommMemory larger = gathering_memory(group_, source.bytes(group_.size()), device_);
    const std::lock_guard lock(mutex_);
    scratch_ = std::move(larger);
  }
  DeviceEvent behind;
  if (own == nullptr) {
    const std::lock_guard lock(mutex_);
    behind = served_;
  } else {
    behind = own->asked;
  }
  gather(*first, own, next, behind);
  DeviceEvent end = point_of_stream(device_);
  const std::lock_guard lock(mutex_);
  last_ = end;
  if (own == nullptr) return;
  arrived_[static_cast<std::size_t>(*first)] = std::move(end);
  wishes_.pop_front();
}

void GatherLine::tell_broken() {
  std::string why;
  try {
    if (broken_) std::rethrow_exception(broken_);
  } catch (const Error& error) {
    why = error.what();
  }
  const std::vector<std::string> all = group_.all_gather(why);
  if (broken_) std::rethrow_exception(broken_);
  for (int rank = 0; rank < group_.size(); ++rank)
    if (const std::string& said = all[static_cast<std::size_t>(rank)]; !said.empty())
      throw PeerError(rank, group_.named(rank) + " has lost its parts of the parameters: " + said);
}

const std::byte* GatherLine::stored(int bucket, bool serves) {
  if (broken_ && !serves) std::rethrow_exception(broken_);
  try {
    if (!broken_) return store_->fetch(bucket);
  } catch (const OffloadError&) {
    if (!serves) throw;
    broken_ = std::current_exception();
  }
  zeros_.assign(sources_[static_cast<std::size_t>(bucket)].parts * store_->stride(bucket), std::byte{0});
  return zeros_.data();
}

void GatherLine::gather(int bucket, const Wish* wish, std::int32_t next, const DeviceEvent& behind) {
  come_behind(device_, behind);
  const Source& source = sources_[static_cast<std::size_t>(bucket)];
  std::byte* const memory = wish != nullptr ? wish->memory : scratch_.as<std::byte>();
  const std::byte* const own = store_ != nullptr ? stored(bucket, wish == nullptr) : source.own;
  const std::size_t stride = store_ != nullptr ? store_->stride(bucket) : source.part_bytes;
  if (store_ != nullptr && next != kServes) store_->expect(next);
  const std::size_t round = source.part_bytes * static_cast<std::size_t>(group_.size());
  WaitedFor begun;  // on a device asynchronous ones wait for fewer of each other there
  for (std::size_t k = 0; k < source.parts; ++k)
    begun.add([&] {
      return group_.all_gather_async(ConstBuffer{own + k * stride, source.part_bytes, DType::u8, device_},
                                     Buffer{memory + k * round, round, DType::u8, device_},
                                     {.purpose = source.what});
    });
  begun.wait();
}

}  // namespace lockstep
