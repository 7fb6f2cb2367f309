// The channel over MPI's point-to-point messages, so that our algorithms run on whatever fabric MPI has. One
// communicator carries everything: data (mpi_transfer.h) and send/recv on tags of their own, the group's news
// (mpi_line.h), and MPI's own collectives, which MPI keeps apart from messages.
//
// Deadline and news are looked at while waiting: MPI itself knows no time limit, and tells of a dead peer by
// ending the job (mpirun, srun) or not at all; then the timeout does.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/agree/agreement.h"
#include "comm/agree/mismatch.h"
#include "comm/call/spin.h"
#include "comm/channel/mpi_line.h"
#include "comm/channel/mpi_patience.h"
#include "comm/channel/mpi_transfer.h"
#include "comm/channel/wire_channel.h"
#include "lockstep/base/clock.h"

namespace lockstep {

class MpiChannel final : public WireChannel, private Notices {
 public:
  // Takes the communicator over. `spin`: how long a wait polls before it gives its core away.
  MpiChannel(MPI_Comm comm, RankNames names, std::chrono::nanoseconds spin);
  ~MpiChannel() override;  // tells the peers that it leaves

  int rank() const override { return line_->rank(); }
  int size() const override { return line_->size(); }
  void begin(Call& call, const CallCard& card, Kind kind) override;
  void exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                const kernel::Reduction& reduction) override;
  void fail(const Error& error) noexcept override { line_->fail(error); }
  void check() override { line_->check(); }
  std::unique_ptr<WireChannel> among(const std::vector<int>& ranks, const std::string& group,
                                     std::chrono::milliseconds timeout) override;
  void watch(WireChannel* whole, std::function<void()> idle, std::vector<int> mates) override {
    whole_ = dynamic_cast<MpiChannel*>(whole);
    idle_ = std::move(idle);
    agreement_.is_part_of(whole_ == nullptr ? nullptr : &whole_->agreement_, std::move(mates));
  }
  void tell_waits(const std::vector<int>& ranks) noexcept override { agreement_.post(ranks); }
  // MPI hides how its messages arrive: nothing is seen of the links.
  double observed_s_per_byte(int /*rank*/) const override { return 0; }
  void forget_observed() override {}
  // What peers say is heard while this rank waits in a call.
  void catch_up() override { check(); }
  std::string peer_state(int rank) const override { return line_->has_left(rank) ? "left" : "joined"; }

  // For MPI's own collectives, between one begin() and the next:
  MPI_Comm comm() const { return line_->comm(); }
  // Everybody's `word`, in rank order; all are of the same length. All ranks must be in the same call: else
  // MismatchError on every rank, naming who called what. A divisor that was left to the others is told. One
  // small message to everybody, which is how a timeout can say who is missing.
  std::vector<std::byte> meet(std::span<const std::byte> word = {});
  // Memory that MPI may still touch after a failure: kept until the process ends.
  void keep(std::shared_ptr<void> memory) { line_->keep(std::move(memory)); }
  // Waits for a request of MPI's own, with `bytes` on their way, as exchange does. `peers`: whom it is with,
  // when that is known.
  void wait(MPI_Request& request, const char* what, std::size_t bytes, const std::vector<int>& peers = {},
            MPI_Status* status = MPI_STATUS_IGNORE);

 private:
  void run(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
           const kernel::Reduction& reduction);
  void judge(int from, const CallCard& card, std::uint64_t bytes, std::uint64_t expected);
  void learn_divisor(const CallCard& card);
  // Takes turns until finished(), with `bytes` that move without a turn saying so.
  template <class Turn, class Finished, class WaitsFor>
  void wait_until(std::size_t bytes, Turn&& turn, Finished&& finished, WaitsFor&& waits_for);
  void hear();                                   // the news; throws what they mean
  void look(const std::vector<int>& waits_for);  // what a waiting rank does now and then
  // Notices
  void post(const Notice& mine) override;
  std::optional<Notice> read(int rank) const override;
  std::string where() const override { return call_->where(names().group()); }
  std::string seen(int /*rank*/) const override { return ""; }
  std::string silent() const override { return "MPI"; }
  std::string named(int rank) const { return names().named(rank); }
  template <class Body>
  void guarded(Body&& body);

  std::shared_ptr<mpi::Line> line_;
  std::chrono::nanoseconds most_spin_;
  SpinBudget spin_;
  Agreement agreement_;
  mpi::Transfer transfer_;
  MpiChannel* whole_ = nullptr;  // that is watched; its call is announced by its own begin()
  std::function<void()> idle_;
  Call* call_ = nullptr;
  CallCard card_;
  Kind kind_ = Kind::collective;
  CallHistory history_;
  std::int64_t gone_ns_ = 0;  // since when a rank that it waits for is known to have left; 0: none
  std::vector<CallCard>* met_ = nullptr;  // where cards are collected instead of being judged
};

}  // namespace lockstep
