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
#include "comm/channel/shm_channel.h"
#include "comm/engine/engine.h"
#include "comm/shm/meeting.h"
#include "comm/shm/session.h"
#include "comm/tune/selector.h"

namespace lockstep {

class ShmEngine final : public Engine, private Reach {
 public:
  // `members[i]` is the session's rank of the group's rank i, `control` the group's control block (zeroed, or
  // in use by ranks that came earlier). The world's block lies in the arena's head: pass it unowned.
  ShmEngine(std::shared_ptr<shm::Session> session, std::shared_ptr<shm::Control> control, std::string name,
            int rank, std::vector<int> members);
  ~ShmEngine() override;

  const char* name() const override { return "shm"; }
  int rank() const override { return meeting_.rank(); }
  int size() const override { return meeting_.size(); }
  const std::vector<int>& nodes() const override { return nodes_; }
  std::string refuses(const Call& call) const override;
  std::vector<std::string> algorithms(Collective what) const override;
  void run(const Call& call) override;
  double open(const Call& call) override;
  CommMemory allocate(std::size_t bytes) override;
  std::unique_ptr<Engine> split(int colour, int key, const std::string& name, const Call& call) override;
  std::span<std::byte> flight_memory(int rank) override;
  std::string peer_state(int rank) const override;
  int peer_pid(int rank) const override;
  Selector* selector() override { return &selector_; }
  void fail(const Error& error) noexcept override;
  void catch_up() override { meeting_.check(); }
  void call_ranks(RankNames names) override { meeting_.call_ranks(std::move(names)); }
  RankNames rank_names() const override { return meeting_.rank_names(); }

  // For a group of several nodes, of which this is the inside of one: all ranks of the node meet and compare
  // their calls as for any collective, then `body` works on everybody's buffers. It gets the call with the
  // divisor that the node knows. Waits inside `body` may take `grace` longer than the call.
  void with_peers(const Call& call, std::chrono::milliseconds grace,
                  const std::function<void(Reach& reach, const Call& call)>& body);
  // Called with the ranks that this one waits for, about twice a second while it does.
  void on_wait(std::function<void(const std::vector<int>& ranks)> told) { meeting_.on_wait(std::move(told)); }
  // This rank waits for ranks of other nodes: its peers here should not give up on it before it does.
  void waits_outside() { meeting_.waits_outside(); }
  bool reaches(const void* data) const override;
  // Finds out whether the ranks may read each other's private memory, by doing it: all of them may, or nobody
  // does. Until then nobody may. Collective, before any other call; parts that are split off inherit the
  // answer. Throws UsageError where LOCKSTEP_ALGORITHM asks for an algorithm that needs it in vain.
  void try_pages(std::chrono::milliseconds timeout);
  // The same where all ranks are threads of this process: each finds out alone.
  void try_own_pages();
  double expected_seconds(const Call& call) const override;

 private:
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
  template <class Body>
  auto together(const Call& call, Body&& body);
  void execute(const Call& call);
  std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call);
  // Says what this rank calls, waits for all, and throws MismatchError when they don't agree.
  void meet(const Call& call, const Algorithm* planned, std::int64_t first = 0, std::int64_t second = 0);
  void compare(const Call& call);
  const Algorithm* agree(const Call& call, const Algorithm* planned) const;
  double divisor_of_others() const;  // kDivisorOfOthers when nobody says it
  Shape shape_of(const Call& call, bool reachable) const;
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
  std::string name_;
  std::vector<int> members_;
  std::vector<int> nodes_;
  mutable shm::Meeting meeting_;
  ShmChannel channel_;
  ShmChannel messages_;  // send and recv, apart from what collectives send
  Scratch scratch_;
  Selector selector_;
  std::uint64_t round_ = 0;                                                            // collectives so far
  std::string no_pages_ = "whether ranks may read each other's memory was not tried";  // empty: they may
  shm::Session::Ticket ticket_;
};

}  // namespace lockstep
