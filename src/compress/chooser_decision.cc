// How a chooser comes from what all ranks found to one choice: the same sums on every rank, and rank 0's
// table.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "compress/chooser.h"

namespace lockstep::compress {
namespace {

// What a rank tells: of the period's first steps and of its last, of each bucket, of each way of it.
constexpr std::size_t kOfPeriod = 2 * LinkWatch::kSteps, kOfBucket = 1, kOfWay = 6;

std::size_t numbers_of_bucket() { return kOfBucket + kOfWay * Chooser::candidates().size(); }

}  // namespace

struct Chooser::Ways {
  struct Way {
    bool makes_smaller = false;  // something of the bucket
    bool is_there = false;       // it does, and was tried
    double table_s = 0, codec_s = 0, error = 0;
  };
  double dense_s = 0;  // by the table
  std::vector<Way> ways;
  int before = kUndecided;

  double table_s(int way) const { return way < 0 ? dense_s : ways[static_cast<std::size_t>(way)].table_s; }
  double codec_s(int way) const { return way < 0 ? 0 : ways[static_cast<std::size_t>(way)].codec_s; }
  double expected_s(int way, double scale) const { return scale * table_s(way) + codec_s(way); }
};

void Chooser::ask(const WayCosts& costs) {
  told_ = std::make_shared<std::vector<double>>(kOfPeriod);
  std::ranges::copy(watch_.early(), told_->begin());
  std::ranges::copy(watch_.late(), told_->begin() + LinkWatch::kSteps);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const std::optional<WayCost> dense = costs.cost(buckets_[b], kDense);
    told_->push_back(dense ? dense->table_s : 0);
    for (std::size_t c = 0; c < candidates().size(); ++c) {
      const std::optional<WayCost> way = costs.cost(buckets_[b], static_cast<int>(c));
      const Found& found = found_[b][c];
      told_->insert(told_->end(), {way ? way->table_s : 0, way ? way->coded_elements : 0, found.seconds,
                                   found.elements, found.error, found.meant});
    }
  }
  all_told_ = std::make_shared<std::vector<double>>(told_->size() * static_cast<std::size_t>(group_.size()));
  asked_ = group_
               .all_gather_async(buffer(std::as_const(*told_)), buffer(*all_told_),
                                 {.purpose = "what compression would cost"})
               .then([held = told_, all = all_told_] {});
}

// How far off a way is belongs to the bucket; where nobody tried it there, or with zeros alone, which are off
// by nothing, what others found counts. How fast it is belongs to the machine: of all that was tried, since
// one trial may have been disturbed.
std::vector<Chooser::Ways> Chooser::gathered_ways() const {
  const std::vector<double>& all = *all_told_;
  const std::size_t numbers = told_->size(), methods = candidates().size();
  const auto found_of = [&](std::size_t b, std::size_t c) {
    Found sum;
    for (std::size_t begin = 0; begin < all.size(); begin += numbers) {
      const double* const n = &all[begin + kOfPeriod + b * numbers_of_bucket() + kOfBucket + c * kOfWay];
      sum += {.seconds = n[2], .elements = n[3], .error = n[4], .meant = n[5]};
    }
    return sum;
  };
  const std::size_t count = (numbers - kOfPeriod) / numbers_of_bucket();
  std::vector<Found> of_all(methods);
  for (std::size_t b = 0; b < count; ++b)
    for (std::size_t c = 0; c < methods; ++c) of_all[c] += found_of(b, c);
  std::vector<Ways> list;
  for (std::size_t b = 0; b < count; ++b) {
    const double* const of_bucket = &all[kOfPeriod + b * numbers_of_bucket()];  // rank 0's
    Ways& ways = list.emplace_back();
    ways.dense_s = of_bucket[0];
    ways.before = chosen_of(buckets_[b]);
    for (std::size_t c = 0; c < methods; ++c) {
      const double* const n = of_bucket + kOfBucket + c * kOfWay;
      Found found = found_of(b, c);
      if (!(found.meant > 0)) found = of_all[c];
      const bool is_there = n[0] > 0 && found.meant > 0;
      ways.ways.push_back({.makes_smaller = n[0] > 0,
                           .is_there = is_there,
                           .table_s = n[0],
                           .codec_s = is_there ? n[1] * of_all[c].seconds / of_all[c].elements : 0,
                           .error = found.relative_error()});
    }
  }
  return list;
}

bool Chooser::rescale(std::int64_t step, const std::vector<Ways>& ways) {
  // Laid out anew a bucket may have several ways: what such a step should take nobody knows.
  if (!choices_.empty() && std::ranges::count(ways, kUndecided, &Ways::before) > 0) return false;
  std::vector<double> least(all_told_->begin(), all_told_->begin() + kOfPeriod);
  for (std::size_t begin = told_->size(); begin < all_told_->size(); begin += told_->size())
    for (std::size_t i = 0; i < kOfPeriod; ++i) least[i] = std::min(least[i], (*all_told_)[begin + i]);
  const auto last = least.begin() + LinkWatch::kSteps;
  Period period{.early_s = middle({least.begin(), last}), .late_s = middle({last, least.end()})};
  for (const Ways& bucket : ways) {
    const int way = std::max(bucket.before, static_cast<int>(kDense));
    period.table_s += bucket.table_s(way);
    period.codec_s += bucket.codec_s(way);
  }
  const double scale = rescaled(scale_, period);
  if (scale == scale_) return false;
  tell(fmt::format(
      "step {}: a step's calls take {:.3g} ms, {:.3g} ms at first, {:.3g} ms by the table: its costs count "
      "{:.3g} times",
      step, period.late_s * 1e3, period.early_s * 1e3, period.table_s * 1e3, scale));
  scale_ = scale;
  return true;
}

int Chooser::best_of(const Ways& ways, int before) const {
  if (!(ways.dense_s > 0)) return kDense;
  const auto accepted = [&](int way) {
    if (way < 0) return way == kDense;
    const Ways::Way& own = ways.ways[static_cast<std::size_t>(way)];
    return own.is_there && own.error <= options_.max_error;
  };
  int best = kDense;
  for (int way = 0; way < static_cast<int>(ways.ways.size()); ++way)
    if (accepted(way) && ways.expected_s(way, scale_) < ways.expected_s(best, scale_)) best = way;
  if (!accepted(before)) return best;
  return ways.expected_s(best, scale_) < kWorthwhile * ways.expected_s(before, scale_) ? best : before;
}

// One line for all buckets whose choice changes alike.
void Chooser::tell_changes(std::int64_t step, const std::vector<Ways>& list, const std::vector<int>& best) {
  struct Change {
    std::size_t first = 0, count = 0;
    double expected_s = 0, dense_s = 0;
  };
  std::map<std::pair<int, int>, Change> changes;
  for (std::size_t b = 0; b < list.size(); ++b) {
    if (best[b] == list[b].before) continue;
    Change& own = changes.try_emplace({list[b].before, best[b]}, Change{.first = b}).first->second;
    ++own.count;
    own.expected_s += list[b].expected_s(best[b], scale_);
    own.dense_s += list[b].expected_s(kDense, scale_);
  }
  for (const auto& [ways, change] : changes) {
    const std::string before = choices_.empty()           ? ""
                               : ways.first == kUndecided ? " in place of several"
                                                          : " in place of " + name_of(ways.first);
    const std::string more = change.count == 1 ? "" : fmt::format(" and {} more", change.count - 1);
    tell(fmt::format("step {}: {}{}: {}{}; expected {:.3g} ms, {:.3g} ms as it is", step,
                     buckets_[change.first].label, more, name_of(ways.second), before,
                     change.expected_s * 1e3, change.dense_s * 1e3));
  }
}

bool Chooser::decide(std::int64_t step) {
  asked_.wait();
  const std::vector<Ways> list = gathered_ways();
  // Nobody had a gradient that is finite and not zero (a loss scale that is too large at first): nothing is
  // known, and this step and the next ones are looked at too.
  const auto any = [&](bool Ways::Way::*what) {
    return std::ranges::any_of(list, [&](const Ways& ways) { return std::ranges::any_of(ways.ways, what); });
  };
  if (any(&Ways::Way::makes_smaller) && !any(&Ways::Way::is_there)) {
    age_ = first_probe();
    return false;
  }
  const bool is_rescaled = rescale(step, list);
  std::vector<std::int64_t> chosen = choices_;
  chosen.resize(parameters_.size(), kDense);
  std::vector<int> best;
  std::vector<double> expected_s(candidates().size()), errors(candidates().size());
  double dense_s = 0;
  for (std::size_t b = 0; b < list.size(); ++b) {
    const Ways& ways = list[b];
    best.push_back(best_of(ways, ways.before));
    for (const std::size_t p : buckets_[b].parameters) chosen[p] = best[b];
    dense_s += ways.expected_s(kDense, scale_);
    for (std::size_t c = 0; c < candidates().size(); ++c) {
      expected_s[c] += ways.expected_s(ways.ways[c].is_there ? static_cast<int>(c) : kDense, scale_);
      errors[c] = std::max(errors[c], ways.ways[c].error);
    }
  }
  tell_changes(step, list, best);
  std::string seen = fmt::format("as it is {:.2f} ms", dense_s * 1e3);
  for (std::size_t c = 0; c < candidates().size(); ++c)
    seen += fmt::format(", {} {:.2f} ms (error {:.3f})", candidates()[c], expected_s[c] * 1e3, errors[c]);
  reason_ = dense_s > 0 ? fmt::format("expected of a step: {}; accepted: an error of {} at most", seen,
                                      options_.max_error)
                        : "the group has no table of costs";
  const bool changes = chosen != choices_;
  interval_ = changes ? std::min(kFirstInterval, options_.every) : std::min(2 * interval_, options_.every);
  choices_ = std::move(chosen);
  age_ = 0;
  found_.assign(found_.size(), std::vector<Found>(candidates().size()));
  for (BucketView& bucket : buckets_) bucket.table_s.reset();
  if (changes || is_rescaled) watch_.restart();
  return changes;
}

}  // namespace lockstep::compress
