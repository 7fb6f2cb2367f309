// Gathers that all workers make in one order, though not all have something to gather.
//
// A worker whose lanes are over, or that has none, still holds its share of what the others compute with. So
// every gather has two rounds on a group of its own: each worker says which bucket it wants, or that it only
// serves; then those parts are gathered, on who serves into scratch memory. A worker says something when it
// wants a bucket, or when its passes are over (serve()); the line is over when nobody wants anything.
//
//   rank 0  want 3   want 2   serve
//   rank 1  want 3   serve    serve      has fewer lanes
//           gather 3 gather 2 over
//
// A worker that serves waits elsewhere, perhaps for those who gather: where it cannot read its parts any more
// it gives zeros in their place, and says so when the line is over. That fails on all workers, and comes
// before anybody uses what was computed with them.
//
// A thread of its own makes the calls, so that what is asked for comes while the worker computes. On a device
// it has a stream of its own, too. A gather there comes behind what the stream of who asks holds, which has
// updated the own part and computed with what the memory held before; what waits for it is the stream of
// who waits, and the host waits only until it was put there.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/device.h"
#include "lockstep/comm/group.h"

namespace lockstep {

class ShardStore;

class GatherLine {
 public:
  // A bucket as its sharers have it: `parts` parts of `part_bytes` each; the sharers' first parts lie one
  // behind the other, then their second ones.
  struct Source {
    const std::byte* own = nullptr;  // null: on disk
    std::size_t part_bytes = 0;
    std::size_t parts = 1;
    std::string what = {};  // for messages
    std::size_t bytes(int sharers) const { return part_bytes * parts * static_cast<std::size_t>(sharers); }
  };

  // `group`: those who hold the shares, and nobody calls on it but this. `device`: where they lie.
  explicit GatherLine(Group group, Device device = {});
  ~GatherLine();
  GatherLine(const GatherLine&) = delete;
  GatherLine& operator=(const GatherLine&) = delete;

  // Before anything is asked for; the memory stays until this is gone. Returns its number.
  int add(Source source);
  // Where own parts are that are on disk, under the same numbers; outlives the last call.
  void set_store(ShardStore* store) { store_ = store; }
  const Group& group() const { return group_; }
  Device device() const { return device_; }
  // Makes no more calls, and returns when the one under way is over: nothing is written any more (on a device
  // before what the current stream is given from now on). What was asked for and is not there never comes.
  void stop();

  // Asks for a bucket, into memory as large as it is. Returns at once.
  void ask(int bucket, std::byte* memory);
  // Until it is there; on a device what the current stream is given from now on comes behind it. Throws what
  // the gathers threw, from then on always.
  void wait(int bucket);

  // This worker wants nothing more for now. Returns at once: from here on it serves the others.
  void serve();
  // Until all workers serve. What the current stream is given from now on may write the own parts.
  void wait_over();
  // Bytes of the largest bucket that was gathered for others alone, which is how much scratch there is.
  std::size_t scratch_bytes() const;

 private:
  struct Wish {
    int bucket;
    std::byte* memory;
    DeviceEvent asked;  // on the stream of who asked
  };
  void work();
  // `next`: the bucket that this worker wants then; kServes: none.
  void round(const Wish* own, std::int32_t next);
  void gather(int bucket, const Wish* wish, std::int32_t next, const DeviceEvent& behind);
  const std::byte* stored(int bucket, bool serves);
  // Throws what a worker could not read, on all of them.
  void tell_broken();

  static constexpr std::int32_t kServes = -1;
  static constexpr std::int32_t kServesZeros = -2;

  Group group_;
  Device device_;
  ShardStore* store_ = nullptr;
  std::vector<Source> sources_;
  std::vector<std::int32_t> said_;  // by all of them, in this round
  CommMemory scratch_;
  std::exception_ptr broken_;  // why it gives zeros
  std::vector<std::byte> zeros_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Wish> wishes_;
  bool serving_ = false;
  DeviceEvent served_;                // where that was said
  std::vector<DeviceEvent> arrived_;  // by bucket, the last time
  DeviceEvent last_;                  // where the last gather ends
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses all of them
};

}  // namespace lockstep
