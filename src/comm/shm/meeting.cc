#include "comm/shm/meeting.h"

#include <algorithm>
#include <cstring>

#include "base/seconds_text.h"
#include "comm/call/stall.h"

namespace lockstep::shm {
Meeting::Meeting(Control& control, std::string group, int rank, int size, std::shared_ptr<Naming> naming)
    : control_(control), group_(std::move(group)), rank_(rank), size_(size), naming_(std::move(naming)) {
  if (naming_ == nullptr) naming_ = std::make_shared<Naming>(RankNames::plain(group_, size));
}

void Meeting::begin(const Call& call) {
  call_ = &call;
  deadline_ = Deadline::after(call.timeout);
  own_seat().sequence.store(call.sequence, std::memory_order_relaxed);
}

std::string Meeting::where() const { return call_ == nullptr ? "group " + group_ : call_->where(group_); }

// A central counter rather than a flag per rank: the last to come wakes all sleepers with one call, which
// is what keeps many ranks on few cores moving.
void Meeting::barrier() {
  ++phase_;
  const std::uint64_t arrived = control_.arrivals.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (arrived == phase_ * static_cast<std::uint64_t>(size_)) {
    auto before = static_cast<std::uint32_t>(phase_ - 1) & ~kBroken;
    const auto after = static_cast<std::uint32_t>(phase_) & ~kBroken;
    if (!control_.phase.compare_exchange_strong(before, after, std::memory_order_seq_cst)) rethrow();
    // Only now: a last rank stopped before this point is the one that all wait for.
    own_seat().phase.store(phase_, std::memory_order_relaxed);
    if (control_.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(control_.phase);
    return;
  }
  own_seat().phase.store(phase_, std::memory_order_relaxed);
  if (!phase_reached()) wait_for_phase();
}

void Meeting::wait_for_phase() {
  if (spin_.any()) {
    const std::int64_t spin_until = now_ns() + spin_.now().count();
    do {
      for (int turn = 0; turn < 64; ++turn) {
        if (phase_reached()) return spin_.paid_off();
        relax();
      }
      if (failed()) return give_up_barrier();
    } while (now_ns() < spin_until);
    spin_.was_wasted();
  }
  while (!phase_reached()) {
    const std::uint32_t seen = control_.phase.load(std::memory_order_seq_cst);
    control_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!phase_reached())
      futex_wait(control_.phase, seen,
                 std::min<std::chrono::nanoseconds>(kLookAroundEvery, deadline_.left()));
    control_.sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (phase_reached()) break;
    const std::vector<int> ranks = not_in_phase();
    int gone = left_among(ranks);
    if (gone >= 0 && seat(gone).phase.load(std::memory_order_relaxed) >= phase_)
      gone = -1;  // it came, then left
    if (!hopeless(ranks, gone)) continue;
    give_up_barrier();
    break;
  }
  stop_waiting();
}

void Meeting::give_up_barrier() {
  if (!reached(control_.phase.fetch_or(kBroken, std::memory_order_seq_cst))) rethrow();
}

std::vector<int> Meeting::not_in_phase() const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r)
    if (seat(r).phase.load(std::memory_order_relaxed) < phase_) ranks.push_back(r);
  return ranks;
}

int Meeting::left_among(const std::vector<int>& ranks) const {
  for (int r : ranks)
    if (seat(r).state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(SeatState::left))
      return r;
  return -1;
}

bool Meeting::hopeless(const std::vector<int>& ranks, int gone) {
  if (failed()) return true;
  if (gone >= 0) {
    fail(PeerError(number_of(gone), named(gone) + " left group " + group_ + " while " + named(rank_) +
                                        " waits for it in " + where()));
  } else if (deadline_.passed() && !ranks.empty() && !held_up_outside(ranks)) {
    fail(timeout(at_fault(ranks)));
  } else {
    say_waits(ranks);
    mention_wait(ranks);
  }
  return failed();
}

void Meeting::mention_wait(const std::vector<int>& ranks) {
  if (waiting_since_ns_ == 0) waiting_since_ns_ = now_ns();
  if (on_wait_ && now_ns() - told_wait_ns_ > std::chrono::nanoseconds(kTellEvery).count()) {
    told_wait_ns_ = now_ns();
    on_wait_(ranks);
  }
  if (call_ == nullptr || call_->stall == nullptr) return;
  call_->stall->look_for_stop(waiting_since_ns_);
  if (!call_->stall->due(waiting_since_ns_)) return;
  // Those that wait for ranks of other groups say so there.
  if (const Ends ends = ends_of(ranks); ends.late.empty() && ends.outside) return;
  for (int r = 0; r < rank_; ++r)
    if (waits(r) && !is_held_outside(r)) return;
  call_->stall->say({.who = named(rank_), .whom = where_they_are(at_fault(ranks)), .where = where()});
}

void Meeting::say_waits(const std::vector<int>& ranks) {
  const RankMask mask = mask_of(ranks);
  for (std::size_t word = 0; word < RankMask::kWords; ++word)
    own_seat().waits_for[word].store(mask.words[word], std::memory_order_relaxed);
  own_seat().waiting_ns.store(now_ns(), std::memory_order_release);
}

bool Meeting::says_it_waits(int rank, int whom) const {
  const std::uint64_t word = seat(rank).waits_for[RankMask::word(whom)].load(std::memory_order_relaxed);
  return (word & RankMask::bit(whom)) != 0;
}

// A rank that sleeps renews its word every nap; one that was stopped does not.
bool Meeting::waits(int rank) const {
  return seat(rank).waiting_ns.load(std::memory_order_acquire) >=
         now_ns() - std::chrono::nanoseconds(4 * kLookAroundEvery).count();
}

// A seat has a bit for each rank of the group, and none for the world outside of it. A rank never waits for
// itself, so its own bit says that: it waits for somebody who is not in this group.
void Meeting::waits_outside() { say_waits({rank_}); }

bool Meeting::held_up_outside(const std::vector<int>& ranks) const {
  if (Clock::now() > deadline_.at() + kOutside) return false;
  // It is said again several times a second; whoever was stopped says nothing more.
  const std::int64_t fresh = now_ns() - std::chrono::nanoseconds(std::chrono::milliseconds(600)).count();
  return std::all_of(ranks.begin(), ranks.end(), [&](int r) {
    return seat(r).waiting_ns.load(std::memory_order_acquire) >= fresh && says_it_waits(r, r);
  });
}

// The neighbour that this rank waits for may itself wait for another, as along a ring: only the end of the
// chain is worth naming.
Meeting::Ends Meeting::ends_of(const std::vector<int>& ranks) const {
  std::vector<bool> seen(static_cast<std::size_t>(size_));
  seen[static_cast<std::size_t>(rank_)] = true;
  std::vector<int> chain = ranks;
  Ends ends;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const int r = chain[i];
    if (seen[static_cast<std::size_t>(r)]) continue;
    seen[static_cast<std::size_t>(r)] = true;
    if (!waits(r)) {
      ends.late.push_back(r);
      continue;
    }
    ends.outside = ends.outside || is_held_outside(r);
    for (int next = 0; next < size_; ++next)
      if (says_it_waits(r, next)) chain.push_back(next);
  }
  std::sort(ends.late.begin(), ends.late.end());
  return ends;
}

std::vector<int> Meeting::at_fault(const std::vector<int>& ranks) const {
  const Ends ends = ends_of(ranks);
  return ends.late.empty() ? ranks : ends.late;
}

std::string Meeting::where_they_are(const std::vector<int>& ranks) const {
  std::string text;
  for (int r : ranks) {
    text += (text.empty() ? "" : "; ") + named(r);
    const std::uint64_t last = seat(r).sequence.load(std::memory_order_relaxed);
    // A message has the number of the collective before it, which all may have been in.
    const bool inside = !is_message(call_->what) && last >= call_->sequence;
    text += inside ? " (inside this operation)" : " (last seen in operation " + std::to_string(last) + ")";
  }
  return text;
}

TimeoutError Meeting::timeout(const std::vector<int>& ranks) const {
  std::vector<int> numbers;
  for (int r : ranks) numbers.push_back(number_of(r));
  return {std::move(numbers), where() + ": no answer within " + seconds_text(call_->timeout) + " on " +
                                  named(rank_) + "; missing: " + where_they_are(ranks)};
}

void Meeting::ring_doorbell(int peer) {
  Seat& other = seat(peer);
  if (other.asleep.load(std::memory_order_seq_cst) == 0) return;
  other.doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(other.doorbell);
}

void Meeting::fail(const Error& error) {
  const std::lock_guard lock(failing_);
  if (failed()) return;  // the first stays; this rank's record may be what is being read
  own_seat().failure = record_of(error);
  std::uint32_t none = 0;
  control_.failed.compare_exchange_strong(none, static_cast<std::uint32_t>(rank_) + 1,
                                          std::memory_order_acq_rel);
  wake_everybody();
}

void Meeting::peer_died(int peer) {
  Seat& other = seat(peer);
  if (other.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(SeatState::left)) {
    wake_everybody();
    return;
  }
  other.state.store(static_cast<std::uint32_t>(SeatState::dead),
                    std::memory_order_release);  // its owner is gone
  fail(PeerError(number_of(peer), named(peer) + " of group " + group_ + " died (process " +
                                      std::to_string(other.pid.load(std::memory_order_relaxed)) +
                                      "); last seen in operation " +
                                      std::to_string(other.sequence.load(std::memory_order_relaxed))));
}

void Meeting::leave() {
  own_seat().state.store(static_cast<std::uint32_t>(SeatState::left), std::memory_order_release);
  wake_everybody();
  control_.left.fetch_add(1, std::memory_order_acq_rel);  // after this the block may be given away
}

void Meeting::wake_everybody() {
  futex_wake_all(control_.phase);
  for (int r = 0; r < size_; ++r) {
    seat(r).doorbell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(seat(r).doorbell);
  }
}

void Meeting::rethrow() const {
  const std::uint32_t holder = control_.failed.load(std::memory_order_acquire);
  throw_record(seat(static_cast<int>(holder) - 1).failure);
}

}  // namespace lockstep::shm
