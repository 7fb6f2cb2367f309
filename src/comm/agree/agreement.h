// Who waits for whom, and who is at fault: one rank's view of its group while a call of its lasts. One
// protocol for every transport (comm/agree/notices.h):
//
//   A rank that has waited for a while posts a notice: for whom it waits. It renews it as long as it waits.
//   Ranks that wait for each other are in the same trouble; at fault is the end of the chain, who does not
//   wait. When a call's time is over its rank gives up with a TimeoutError that names those, once for all
//   ranks: the group fails with it (Engine::fail), and everybody throws the same. People are told earlier
//   (comm/call/stall.h), by the lowest rank that waits.
//
// A call whose peers come soon touches none of this but begin().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/agree/notices.h"
#include "comm/call/call.h"
#include "comm/call/rank_names.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep {

// Those at fault.
struct Blamed {
  std::vector<int> numbers;  // in the program's group (RankNames::number)
  std::string text;          // "rank 1 (last seen in operation 6); rank 3"
};

class Agreement {
 public:
  Agreement(Notices& notices, int rank, int size, std::shared_ptr<Naming> naming);
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // This group's ranks are some of `whole`, which is then told of its waits and asked who keeps others up;
  // null: of none. `mates`: ranks of this group that know this rank's waits by another way, and leave it to
  // this one to speak for them where they wait for it.
  void is_part_of(Agreement* whole, std::vector<int> mates);
  // Called with the ranks that this one waits for, about twice a second while it does.
  void on_wait(std::function<void(const std::vector<int>& ranks)> told) { on_wait_ = std::move(told); }

  // The waits that follow are of `call`, which must live until end() or another begin(); its time starts now.
  // Notices are posted every `post_every`.
  void begin(const Call& call, std::chrono::nanoseconds post_every) {
    call_ = &call;
    post_every_ = post_every;
    deadline_ = Deadline::after(call.timeout);
  }
  void end() { call_ = nullptr; }
  const Call* call() const { return call_; }
  const Deadline& deadline() const { return deadline_; }

  // A wait begins; in the middle of it something moved: it has lasted for no time.
  void start_wait() { posted_ns_ = waiting_since_ns_ = 0; }
  void moved() { waiting_since_ns_ = 0; }

  // For a wait for `ranks` that lasts: posts the notice when it is time, tells people when it is time.
  void look(const std::vector<int>& ranks);
  // What to give up with when the call's time is over. A rank that waits for one which waits outside is
  // patient for a while longer, since that one will say what became of it.
  std::optional<TimeoutError> overdue(const std::vector<int>& ranks) const;
  // Posts that this rank waits for these, here and in the whole. No memory for it: it is said again soon.
  void post(const std::vector<int>& ranks) noexcept;

  // Of `ranks`, and of those that they wait for, the ones that wait for nobody; `ranks` themselves where all
  // of them wait.
  Blamed blame(const std::vector<int>& ranks) const;
  // "rank 2 left group world while rank 0 waits for it in barrier(), operation 3 of group world"
  PeerError left(int peer) const;

 private:
  struct Ends {
    std::vector<int> late;  // who does not wait, rising
    bool outside = false;   // somebody waits for ranks outside
  };
  // Where the chains of who waits for whom end that begin with `ranks`.
  Ends ends_of(const std::vector<int>& ranks) const;
  bool leads_here(int from) const;  // the chain from this rank
  bool all_wait_outside(const std::vector<int>& ranks) const;
  std::vector<int> numbers_at_fault(const std::vector<int>& ranks) const;
  bool lower_rank_speaks() const;
  void tell_people(const std::vector<int>& ranks);
  std::string name_of(int number) const;
  bool here(int rank) const { return rank >= 0 && rank < size_; }

  Notices& notices_;
  int rank_;
  int size_;
  std::shared_ptr<Naming> naming_;
  Agreement* whole_ = nullptr;
  std::vector<int> mates_;
  std::function<void(const std::vector<int>&)> on_wait_;
  const Call* call_ = nullptr;
  Deadline deadline_ = Deadline::never();
  std::chrono::nanoseconds post_every_{0};
  std::int64_t posted_ns_ = 0;         // or when the wait began
  std::int64_t waiting_since_ns_ = 0;  // 0: it does not wait, or something just moved
  std::int64_t told_ns_ = 0;           // when on_wait_ was last called
};

}  // namespace lockstep
