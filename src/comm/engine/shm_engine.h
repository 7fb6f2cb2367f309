// The engine of one machine: our algorithms over shared memory.
//
// Every collective opens the same way: publish a descriptor, meet at a barrier, compare everybody's
// descriptors. From there all ranks know the same and run the same algorithm.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/algo/algorithm.h"
#include "comm/call/engine.h"
#include "comm/channel/shm_channel.h"
#include "comm/shm/meeting.h"
#include "comm/shm/session.h"
#include "comm/tune/selector.h"

namespace lockstep {

// What it can do for ranks on `nodes`; `no_pages`: why they may not read each other's private memory, or
// empty.
Capabilities shm_capabilities(const std::vector<int>& nodes, const std::string& no_pages);

class ShmEngine final : public Engine, private Reach, private Composable, private Commons {
 public:
  // `members[i]` is the session's rank of the group's rank i, `control` the group's control block (zeroed, or
  // in use by ranks that came earlier). The world's block lies in the arena's head: pass it unowned. `names`
  // are there from the beginning: a member may be dead already, and is named at once. `forced`:
  // LOCKSTEP_ALGORITHM's, or empty.
  ShmEngine(std::shared_ptr<shm::Session> session, std::shared_ptr<shm::Control> control,
            const RankNames& names, int rank, std::vector<int> members, const std::string& forced = {});
  ~ShmEngine() override;

  CommMemory allocate(std::size_t bytes, Device device) override;
  bool reaches(const void* data) const override;
  double expected_seconds(const Call& call) const override;
  PeerView peer(int rank) const override;
  void tell_failure(const Error& error) noexcept override;
  void check(News /*news*/) override { meeting_.check(); }  // in shared memory all of it is known
  Composable* composable() override { return this; }

  // Finds out whether the ranks may read each other's private memory, by doing it: all of them may, or nobody
  // does. Until then nobody may. Collective, before any other call; parts that are split off inherit the
  // answer. Throws UsageError where LOCKSTEP_ALGORITHM asks for an algorithm that needs it in vain.
  void try_pages(std::chrono::milliseconds timeout);
  // The same where all ranks are threads of this process: each finds out alone.
  void try_own_pages();

 protected:
  void execute(const Call& call) override;
  double meet(const Call& call) override;
  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) override;

 private:
  // Composable, as the inside of a node: peers see in the control block what this rank does, and there are no
  // links to share.
  void announce(const Call& /*call*/) override {}
  void watch(Composable* whole, std::function<void()> idle) override;
  void tell_waits(const std::vector<int>& ranks) noexcept override;
  void share_links(int /*ranks*/) override {}
  Commons* commons() override { return this; }
  // Commons
  void with_peers(const Call& call, std::chrono::milliseconds grace, const Task& task) override;
  std::uint64_t share(std::size_t bytes) override;
  CommMemory hold(std::uint64_t place, std::size_t bytes) override;
  // Reach
  const void* in(int rank) const override;
  void* out(int rank) const override;
  const void* posted(int rank) const override;
  std::size_t windows() const override { return shm::kWindows; }
  std::byte* window(int rank, std::size_t slot) const override { return meeting_.seat(rank).window[slot]; }
  void barrier() override { meeting_.barrier(); }
  void read_in(int rank, std::size_t at, std::span<std::byte> to) override {
    read_from(rank, descriptor(rank).in_address + at, to);
  }
  void read_out(int rank, std::size_t at, std::span<std::byte> to) override {
    read_from(rank, descriptor(rank).out_address + at, to);
  }

  const shm::Descriptor& descriptor(int rank) const { return meeting_.seat(rank).descriptor[round_ % 2]; }
  // Says what it can do; `no_pages`: why ranks may not read each other's private memory, or empty.
  void declare(std::string no_pages);
  void work(const Call& call);
  std::unique_ptr<Engine> join_part(int colour, int key, const std::string& name, const Call& call);
  // Runs `body` with the meeting's waits belonging to `call`. An error leaves it when no peer writes into
  // this rank's buffers any more: they are the program's again.
  template <class Body>
  auto during(const Call& call, Body&& body) {
    try {
      return meeting_.during(call, body);
    } catch (const Error& error) {
      give_up(call, error);
      throw;
    } catch (const std::bad_alloc&) {
      give_up(call, out_of_memory(call));
      throw;
    }
  }
  void give_up(const Call& call, const Error& error) noexcept;
  int peer_pid(int rank) const { return meeting_.seat(rank).pid.load(std::memory_order_relaxed); }
  // Says what this rank calls, waits for all, and throws MismatchError when they don't agree.
  void gather(const Call& call, const Algorithm* planned, std::int64_t first = 0, std::int64_t second = 0);
  void compare();
  const Algorithm* agree(const Call& call, const Algorithm* planned) const;
  double divisor_of_others() const;  // kDivisorOfOthers when nobody says it
  CallShape shape_of(const Call& call, bool reachable) const;
  void point_to_point(const Call& call);
  // Whether peers could read the call's buffers, as far as those are private: the kernel does not read memory
  // of devices.
  bool readable(const Call& call) const;
  void read_from(int rank, std::uint64_t address, std::span<std::byte> to);
  // Throws what the group fails with because this rank could not read rank's memory; `error` says why.
  [[noreturn]] void unread(int rank, int error);
  void settle_pages(std::string why_not);

  std::shared_ptr<shm::Session> session_;
  std::shared_ptr<shm::Control> control_;
  std::vector<int> members_;
  mutable shm::Meeting meeting_;
  ShmChannel channel_;
  ShmChannel messages_;  // send and recv, apart from what collectives send
  Scratch scratch_;
  Selector selector_;
  std::uint64_t round_ = 0;  // collectives so far
  std::string no_pages_;     // why ranks may not read each other's private memory; empty: they may
  shm::Session::Ticket ticket_;
};

}  // namespace lockstep
