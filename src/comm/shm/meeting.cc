#include "comm/shm/meeting.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace lockstep::shm {
namespace {

// A sleeper renews its notice with each look; one that was stopped does not.
constexpr std::chrono::nanoseconds kNoticeHolds = std::chrono::milliseconds(200);
// Of a rank that waits outside, where it looks around less often.
constexpr std::chrono::nanoseconds kOutsideHolds = std::chrono::milliseconds(600);

// For peers that are inside a call when it fails: one that runs is out of it at once, one that has lost its
// core, or waits for the disk, soon. One that was stopped may never be, and its peers are to hear of it.
constexpr std::chrono::seconds kPeersPatience{2};
constexpr std::chrono::milliseconds kPollInterval{1};

std::shared_ptr<Naming> or_plain(std::shared_ptr<Naming> naming, const std::string& group, int size) {
  return naming != nullptr ? std::move(naming) : std::make_shared<Naming>(RankNames::plain(group, size));
}

}  // namespace

Meeting::Meeting(Control& control, const std::string& group, int rank, int size,
                 std::shared_ptr<Naming> naming)
    : control_(control),
      rank_(rank),
      size_(size),
      naming_(or_plain(std::move(naming), group, size)),
      agreement_(*this, rank, size, naming_) {}

void Meeting::begin(const Call& call) {
  agreement_.begin(call, std::chrono::nanoseconds(0));  // a notice in the own seat costs a few stores
  own_seat().sequence.store(call.sequence, std::memory_order_relaxed);
}

std::string Meeting::where() const {
  return agreement_.call() == nullptr ? "group " + group() : agreement_.call()->where(group());
}

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
    own_seat().phase.store(phase_, std::memory_order_release);
    if (control_.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(control_.phase);
    return;
  }
  own_seat().phase.store(phase_, std::memory_order_release);
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
                 std::min<std::chrono::nanoseconds>(kLookAroundEvery, agreement_.deadline().left()));
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

// Who has come to a barrier that never completes works no more.
bool Meeting::may_touch_others(int rank, std::uint32_t done) const {
  const Seat& theirs = seat(rank);
  const std::uint32_t state = theirs.state.load(std::memory_order_acquire);
  return theirs.at_work.load(std::memory_order_acquire) != 0 &&
         state != static_cast<std::uint32_t>(SeatState::dead) &&
         reached(done, theirs.phase.load(std::memory_order_acquire));
}

// No barrier completes any more from here on, so that who is not at work now never will be.
bool Meeting::await_peers_hands_off() {
  if (!failed()) return false;  // there was no memory to say so
  const std::uint32_t done = control_.phase.fetch_or(kBroken, std::memory_order_seq_cst);
  const Deadline patience = Deadline::after(kPeersPatience);
  for (int r = 0; r < size_;) {
    if (r == rank_ || !may_touch_others(r, done)) {
      ++r;
      continue;
    }
    if (patience.passed()) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
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
    fail(agreement_.left(gone));
  } else if (const auto late = agreement_.overdue(ranks)) {
    fail(*late);
  } else {
    agreement_.look(ranks);
  }
  return failed();
}

void Meeting::post(const Notice& mine) {
  const RankMask mask = mask_of(mine.waits_for);
  Seat& own = own_seat();
  for (std::size_t word = 0; word < RankMask::kWords; ++word)
    own.waits_for[word].store(mask.words[word], std::memory_order_relaxed);
  own.waits_outside.store(mine.outside ? 1 : 0, std::memory_order_relaxed);
  own.waiting_ns.store(now_ns(), std::memory_order_release);
}

std::optional<Notice> Meeting::read(int rank) const {
  const Seat& theirs = seat(rank);
  const std::int64_t posted = theirs.waiting_ns.load(std::memory_order_acquire);
  const bool outside = theirs.waits_outside.load(std::memory_order_relaxed) != 0;
  if (posted < now_ns() - (outside ? kOutsideHolds : kNoticeHolds).count()) return std::nullopt;
  RankMask mask;
  for (std::size_t word = 0; word < RankMask::kWords; ++word)
    mask.words[word] = theirs.waits_for[word].load(std::memory_order_relaxed);
  return Notice{.waits_for = mask.ranks(), .outside = outside};
}

std::string Meeting::seen(int rank) const {
  const std::uint64_t last = seat(rank).sequence.load(std::memory_order_relaxed);
  const Call* const call = agreement_.call();
  // A message has the number of the collective before it, which all may have been in; a call of the library's
  // own has none.
  if (call != nullptr && !is_message(call->what)) {
    if (call->sequence == 0) return "";
    if (last >= call->sequence) return " (inside this operation)";
  }
  return " (last seen in operation " + std::to_string(last) + ")";
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
  fail(PeerError(number_of(peer), named(peer) + " of group " + group() + " died (process " +
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
