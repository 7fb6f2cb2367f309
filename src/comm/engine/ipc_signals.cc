#include "comm/engine/ipc_signals.h"

#include <algorithm>
#include <string>

#include "base/seconds_text.h"
#include "comm/cuda/memory_ops.h"
#include "comm/cuda/runtime.h"
#include "comm/engine/ipc_round.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

using cuda::CudaRuntime;
using cuda::IpcCounters;
using cuda::IpcPost;

Commons* commons_of_carrier(Engine& carrier) {
  Composable* const composable = carrier.composable();
  return composable == nullptr ? nullptr : composable->commons();
}

}  // namespace

// Two meetings: where the first rank has made room for the counters; then whether everybody can use it.
void IpcSignals::agree(const Call& call) {
  struct Room {
    std::uint64_t place = 0;
    std::uint64_t made = 0;  // 1: there is such a place
  };
  const int ranks = carrier_->size();
  Commons* const commons = commons_of_carrier(*carrier_);
  std::string why_not = commons == nullptr ? "the carrier's ranks share no memory" : cuda::no_memory_ops();
  Room room;
  if (carrier_->rank() == 0 && why_not.empty()) try {
      room = {.place = commons->share(IpcCounters::bytes_for(ranks)), .made = 1};
    } catch (const SystemError& error) {
      why_not = error.what();
    }
  room = exchange(*carrier_, call, room).front();
  std::shared_ptr<IpcCounters> counters;
  if (commons != nullptr && room.made != 0) try {
      CommMemory memory = commons->hold(room.place, IpcCounters::bytes_for(ranks));
      if (why_not.empty())
        counters = std::make_shared<IpcCounters>(std::move(memory), carrier_->rank(), ranks);
    } catch (const SystemError& error) {
      why_not = error.what();
    }
  const std::uint64_t can = counters == nullptr ? 0 : 1;
  const std::vector<std::uint64_t> all = exchange(*carrier_, call, can);
  agreed_ = true;
  if (std::ranges::find(all, 0U) != all.end()) {
    log().debug("ranks of group {} order their streams by events: {}", carrier_->rank_names().group(),
                why_not.empty() ? "another rank can't by counters" : why_not);
    return;
  }
  const std::lock_guard lock(mutex_);
  counters_ = std::move(counters);
}

void IpcSignals::begin(const Round& round) {
  if (!agreed_) agree(round.call);
  ++round_;
  if (counters_ == nullptr) return;
  const DeviceEvent& before = ends_[round_ % IpcCounters::kRounds];
  if (!CudaRuntime::get().wait_on_host(before, round.call.timeout))
    throw TimeoutError({}, carrier_->rank_names().named(carrier_->rank()) + ", " +
                               round.call.where(carrier_->rank_names().group()) + ": the GPU is " +
                               std::to_string(IpcCounters::kRounds) +
                               " rounds of calls behind, and not over with the first of them after " +
                               seconds_text(round.call.timeout));
}

void IpcSignals::ready(const Round& round, const DeviceStream& stream) {
  if (counters_ != nullptr) return counters_->write(Step::ready, round_, stream);
  round.lender.record_ready(stream);
}

void IpcSignals::done(const Round& round, const DeviceStream& stream) {
  if (counters_ != nullptr) return counters_->write(Step::done, round_, stream);
  round.lender.record_done(stream);
}

void IpcSignals::wait(Step step, const Round& round, const std::vector<IpcPost>& posts,
                      const DeviceStream& stream, const DeviceStream& own) {
  const bool elsewhere = own.handle != stream.handle;
  if (counters_ != nullptr) return counters_->wait(step, round_, stream, elsewhere);
  for (std::size_t r = 0; r < posts.size(); ++r)
    if (static_cast<int>(r) != carrier_->rank() || elsewhere)
      round.peers.wait(posts[r], step == Step::ready ? posts[r].ready : posts[r].done, stream);
}

void IpcSignals::wait_ready(const Round& round, const std::vector<IpcPost>& posts, const DeviceStream& stream,
                            const DeviceStream& own) {
  wait(Step::ready, round, posts, stream, own);
}

void IpcSignals::wait_done(const Round& round, const std::vector<IpcPost>& posts, const DeviceStream& stream,
                           const DeviceStream& own) {
  wait(Step::done, round, posts, stream, own);
}

void IpcSignals::end(const DeviceEvent& at) {
  if (counters_ != nullptr) ends_[round_ % IpcCounters::kRounds] = at;
}

void IpcSignals::release_dead() noexcept try {
  std::shared_ptr<IpcCounters> counters;
  {
    const std::lock_guard lock(mutex_);
    counters = counters_;
  }
  if (counters == nullptr) return;
  for (int r = 0; r < carrier_->size(); ++r)
    if (carrier_->peer(r).state == "dead") {
      released_.store(true, std::memory_order_release);
      counters->release(r);
    }
} catch (const std::exception&) {  // no memory: it is said again soon
}

}  // namespace lockstep
