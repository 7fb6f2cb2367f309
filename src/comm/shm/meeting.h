// How the ranks of one group meet: the barrier, sleeping and waking, and the failure that all of them see.
// One object per rank over the group's shared Control. A wait that outlasts the first sleep goes by the
// agreement (comm/agree/agreement.h), whose notices lie in the seats.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/agree/agreement.h"
#include "comm/call/call.h"
#include "comm/call/rank_names.h"
#include "comm/call/spin.h"
#include "comm/shm/futex.h"
#include "comm/shm/layout.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::shm {

class Meeting final : private Notices {
 public:
  // `naming`: what the group and its ranks are called; null: `group`, and by their numbers.
  Meeting(Control& control, const std::string& group, int rank, int size,
          std::shared_ptr<Naming> naming = nullptr);

  int rank() const { return rank_; }
  int size() const { return size_; }
  Control& control() const { return control_; }
  Seat& seat(int rank) const { return control_.seat(rank); }
  Seat& own_seat() const { return control_.seat(rank_); }

  // How long to poll before sleeping, at most.
  void set_spin(std::chrono::nanoseconds spin) { spin_.set_most(spin); }

  // The waits below belong to `call`, which must stay alive until end() or another begin(); starts its clock.
  void begin(const Call& call);
  void end() { agreement_.end(); }
  // Runs `body` with its waits belonging to `call`, and to none behind it, however it ends.
  template <class Body>
  auto during(const Call& call, Body&& body) {
    struct Ongoing {  // no longer than this: the call is the caller's
      Meeting& meeting;
      ~Ongoing() { meeting.end(); }
    } ongoing{*this};
    begin(call);
    return body();
  }

  // While it lives its rank may touch peers' buffers, behind the next barrier and those that follow.
  class AtWork {
   public:
    explicit AtWork(Seat& seat) : seat_(seat) { seat_.at_work.store(1, std::memory_order_relaxed); }
    ~AtWork() { end(); }
    AtWork(const AtWork&) = delete;
    AtWork& operator=(const AtWork&) = delete;
    void end() { seat_.at_work.store(0, std::memory_order_release); }

   private:
    Seat& seat_;
  };
  // For a rank that gives up, when the group has failed and its own work is over: waits until no living peer
  // can touch its buffers, though not for long. False: one still may.
  bool await_peers_hands_off();

  // Returns when every rank has called it as often as this one. Throws what the group failed with.
  void barrier();

  // Waits until `progress()` returns true; it is called again after every ring of the doorbell.
  // `waiting_for()` names the ranks that are being waited for.
  template <class Progress, class WaitingFor>
  void wait_until(Progress&& progress, WaitingFor&& waiting_for);
  // Tells `peer` that bytes moved. Call it after the store that it should see.
  void ring_doorbell(int peer);

  bool failed() const { return control_.failed.load(std::memory_order_acquire) != 0; }
  // Throws the group's failure, if there is one.
  void check() const {
    if (failed()) rethrow();
  }
  [[noreturn]] void rethrow() const;
  // Makes `error` the group's failure, unless it has one, and wakes everybody. From any thread.
  void fail(const Error& error);
  // The same for a peer that died; nothing if it had left before.
  void peer_died(int peer);
  // Says that this rank waits no more; peers that still need it get a PeerError.
  void leave();

  // What the ranks are called in messages; the thread that watches the peers names them too.
  const std::shared_ptr<Naming>& naming() const { return naming_; }
  RankNames rank_names() const { return naming_->get(); }
  int number_of(int rank) const { return rank_names().number(rank); }
  std::string named(int rank) const { return rank_names().named(rank); }
  std::string group() const { return rank_names().group(); }

  Agreement& agreement() { return agreement_; }
  // This rank waits, somewhere else, for these; none: for somebody who is not in this group. Peers that wait
  // for it then are patient for a while longer, until it says what became of that.
  void waits_elsewhere(const std::vector<int>& ranks) {
    post({.waits_for = ranks, .outside = ranks.empty()});
  }

  // "all_reduce(f32 × 4, sum), operation 3 of group world"
  std::string where() const override;

 private:
  // How often a sleeper looks at the world, and renews its notice.
  static constexpr std::chrono::milliseconds kLookAroundEvery{50};

  // Notices
  void post(const Notice& mine) override;
  std::optional<Notice> read(int rank) const override;
  std::string seen(int rank) const override;
  std::string silent() const override { return ""; }

  bool phase_reached() const { return reached(control_.phase.load(std::memory_order_seq_cst)); }
  bool reached(std::uint32_t done) const {  // counted in 31 bits, kBroken apart
    return reached(done, phase_);
  }
  static bool reached(std::uint32_t done, std::uint64_t phase) {
    return static_cast<std::int32_t>((done - static_cast<std::uint32_t>(phase)) << 1) >= 0;
  }
  bool may_touch_others(int rank, std::uint32_t done) const;
  // For a rank that has seen the failure: returns if its barrier completed all the same, else throws.
  void give_up_barrier();
  void wait_for_phase();
  // Has the group failed? It does now if `gone`, which was waited for, has left, or if the time is over.
  bool hopeless(const std::vector<int>& ranks, int gone);
  int left_among(const std::vector<int>& ranks) const;  // -1: none
  std::vector<int> not_in_phase() const;
  void stop_waiting() {
    agreement_.start_wait();
    if (own_seat().waiting_ns.load(std::memory_order_relaxed) != 0)
      own_seat().waiting_ns.store(0, std::memory_order_relaxed);
  }
  void wake_everybody();

  Control& control_;
  int rank_;
  int size_;
  std::shared_ptr<Naming> naming_;
  SpinBudget spin_;
  std::uint64_t phase_ = 0;  // barriers this rank has come to
  Agreement agreement_;
  std::mutex failing_;  // the rank's own threads
};

template <class Progress, class WaitingFor>
void Meeting::wait_until(Progress&& progress, WaitingFor&& waiting_for) {
  Seat& mine = own_seat();
  const std::int64_t spin_until = now_ns() + spin_.now().count();
  bool slept = false;
  for (int turn = 1;; ++turn) {
    if (progress()) {
      if (!slept && turn > 1) spin_.paid_off();
      if (slept) stop_waiting();
      return;
    }
    if (turn % 64 != 0) {
      relax();
      continue;
    }
    check();
    if (now_ns() < spin_until) continue;
    if (!slept) spin_.was_wasted();
    slept = true;
    const std::uint32_t seen = mine.doorbell.load(std::memory_order_seq_cst);
    mine.asleep.store(1, std::memory_order_seq_cst);
    const bool moved = progress();
    if (!moved)
      futex_wait(mine.doorbell, seen,
                 std::min<std::chrono::nanoseconds>(kLookAroundEvery, agreement_.deadline().left()));
    mine.asleep.store(0, std::memory_order_relaxed);
    if (moved || progress()) return stop_waiting();
    const std::vector<int> ranks = waiting_for();
    const int gone = left_among(ranks);
    if (gone >= 0 && progress()) return stop_waiting();  // it sent that before it left
    if (hopeless(ranks, gone)) rethrow();
  }
}

}  // namespace lockstep::shm
