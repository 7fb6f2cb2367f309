#include "comm/agree/agreement.h"

#include <algorithm>

#include "base/seconds_text.h"
#include "comm/call/stall.h"

namespace lockstep {
namespace {

constexpr std::chrono::nanoseconds kTellEvery = std::chrono::milliseconds(500);
// Longer than the timeout, for ranks that wait outside.
constexpr std::chrono::milliseconds kOutsidePatience{2500};

}  // namespace

Agreement::Agreement(Notices& notices, int rank, int size, std::shared_ptr<Naming> naming)
    : notices_(notices), rank_(rank), size_(size), naming_(std::move(naming)) {}

void Agreement::is_part_of(Agreement* whole, std::vector<int> mates) {
  whole_ = whole;
  mates_ = std::move(mates);
}

void Agreement::look(const std::vector<int>& ranks) {
  const std::int64_t now = now_ns();
  if (waiting_since_ns_ == 0) waiting_since_ns_ = now;
  if (posted_ns_ == 0) posted_ns_ = now;
  if (call_ != nullptr && call_->stall != nullptr) call_->stall->look_for_stop(waiting_since_ns_);
  if (now - posted_ns_ < post_every_.count()) return;
  posted_ns_ = now;
  post(ranks);
  tell_people(ranks);
}

void Agreement::post(const std::vector<int>& ranks) noexcept try {
  notices_.post({.waits_for = ranks});
  if (on_wait_ && now_ns() - told_ns_ > kTellEvery.count()) {
    told_ns_ = now_ns();
    on_wait_(ranks);
  }
  if (whole_ == nullptr) return;
  const RankNames names = naming_->get();
  std::vector<int> numbers;
  for (const int r : ranks) numbers.push_back(names.number(r));
  whole_->post(numbers);
} catch (const std::exception&) {
}

void Agreement::tell_people(const std::vector<int>& ranks) {
  if (call_ == nullptr || call_->stall == nullptr || !call_->stall->due(waiting_since_ns_)) return;
  if (ranks.empty() && notices_.silent().empty()) return;
  // Those that wait outside say so there.
  if (const Ends ends = ends_of(ranks); ends.late.empty() && ends.outside) return;
  if (lower_rank_speaks()) return;
  const std::string whom =
      ranks.empty() ? "others, " + notices_.silent() + " does not say whom," : blame(ranks).text;
  call_->stall->say({.who = naming_->get().named(rank_), .whom = whom, .where = notices_.where()});
}

std::optional<TimeoutError> Agreement::overdue(const std::vector<int>& ranks) const {
  if (call_ == nullptr || !deadline_.passed() || (ranks.empty() && notices_.silent().empty()) ||
      all_wait_outside(ranks))
    return std::nullopt;
  const Blamed missing =
      ranks.empty() ? Blamed{{}, "unknown, " + notices_.silent() + " does not say"} : blame(ranks);
  return TimeoutError(missing.numbers, notices_.where() + ": no answer within " +
                                           seconds_text(call_->timeout) + " on " +
                                           naming_->get().named(rank_) + "; missing: " + missing.text);
}

PeerError Agreement::left(int peer) const {
  const RankNames names = naming_->get();
  return {names.number(peer), names.named(peer) + " left group " + names.group() + " while " +
                                  names.named(rank_) + " waits for it in " + notices_.where()};
}

bool Agreement::all_wait_outside(const std::vector<int>& ranks) const {
  if (ranks.empty() || Clock::now() > deadline_.at() + kOutsidePatience) return false;
  return std::all_of(ranks.begin(), ranks.end(), [&](int r) {
    const auto notice = notices_.read(r);
    return notice && notice->outside;
  });
}

// Numbers in a notice may be anything: it may come from a wire.
Agreement::Ends Agreement::ends_of(const std::vector<int>& ranks) const {
  std::vector<bool> seen(static_cast<std::size_t>(size_));
  seen[static_cast<std::size_t>(rank_)] = true;
  std::vector<int> chain = ranks;
  Ends ends;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const int r = chain[i];
    if (!here(r) || seen[static_cast<std::size_t>(r)]) continue;
    seen[static_cast<std::size_t>(r)] = true;
    const std::optional<Notice> notice = notices_.read(r);
    if (!notice) {
      ends.late.push_back(r);
      continue;
    }
    ends.outside = ends.outside || notice->outside;
    chain.insert(chain.end(), notice->waits_for.begin(), notice->waits_for.end());
  }
  std::sort(ends.late.begin(), ends.late.end());
  return ends;
}

bool Agreement::leads_here(int from) const {
  std::vector<bool> seen(static_cast<std::size_t>(size_));
  std::vector<int> chain = {from};
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const int r = chain[i];
    if (r == rank_) return true;
    if (!here(r) || seen[static_cast<std::size_t>(r)]) continue;
    seen[static_cast<std::size_t>(r)] = true;
    if (const auto notice = notices_.read(r))
      chain.insert(chain.end(), notice->waits_for.begin(), notice->waits_for.end());
  }
  return false;
}

bool Agreement::lower_rank_speaks() const {
  if (whole_ != nullptr) return whole_->lower_rank_speaks();
  for (int r = 0; r < rank_; ++r) {
    const auto notice = notices_.read(r);
    if (!notice || notice->outside) continue;
    const bool mate = std::find(mates_.begin(), mates_.end(), r) != mates_.end();
    if (!mate || !leads_here(r)) return true;
  }
  return false;
}

// A rank that never came to this group may be held up in the whole one, and has said so there.
std::vector<int> Agreement::numbers_at_fault(const std::vector<int>& ranks) const {
  const std::vector<int> late = ends_of(ranks).late;
  const RankNames names = naming_->get();
  std::vector<int> numbers;
  for (const int r : late.empty() ? ranks : late) numbers.push_back(names.number(r));
  return whole_ == nullptr ? numbers : whole_->numbers_at_fault(numbers);
}

std::string Agreement::name_of(int number) const {
  const RankNames names = naming_->get();
  if (const int rank = names.of_number(number); rank >= 0) return names.named(rank) + notices_.seen(rank);
  // One that is not in this part is in the whole, where ranks have the program's numbers.
  return whole_ == nullptr ? "rank " + std::to_string(number) : whole_->name_of(number);
}

Blamed Agreement::blame(const std::vector<int>& ranks) const {
  Blamed blamed{numbers_at_fault(ranks), {}};
  for (const int number : blamed.numbers) blamed.text += (blamed.text.empty() ? "" : "; ") + name_of(number);
  return blamed;
}

}  // namespace lockstep
