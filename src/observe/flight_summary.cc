// Who waits for whom, from the recorders of a group.
//
// Every rank calls the same collectives in the same order, so a rank's place is the sequence number of
// its latest one. Ranks that stand in an operation wait for those whose place is before it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/observe/flight_dump.h"
#include "observe/clauses.h"

namespace lockstep {
namespace {

bool over(const FlightEntry& entry) {
  return entry.state == FlightState::done || entry.state == FlightState::failed;
}

std::string call_of(const FlightEntry& entry) { return fmt::format("{}({})", entry.what, entry.detail); }

class Summary {
 public:
  explicit Summary(const FlightDump& dump) : dump_(dump) {
    for (const FlightRank& rank : dump.ranks) ranks_.push_back(&rank);
    std::sort(ranks_.begin(), ranks_.end(), [&](auto* a, auto* b) { return name(*a) < name(*b); });
  }

  std::vector<std::string> lines() {
    say_gone();
    const std::optional<std::uint64_t> mismatch = first_mismatch();
    if (mismatch) say_mismatch(*mismatch);
    for (std::uint64_t sequence : stuck())
      if (sequence != mismatch) say_waiting(sequence);
    say_point_to_point();
    if (lines_.empty()) say_quiet();
    say_unknown();
    return std::move(lines_);
  }

 private:
  // What people and launchers know a rank by.
  int name(int rank) const {
    return dump_.world_ranks.empty() ? rank : dump_.world_ranks[static_cast<std::size_t>(rank)];
  }
  int name(const FlightRank& rank) const { return name(rank.rank); }
  double since(std::int64_t ns) const {
    return dump_.steady_ns == 0 ? 0 : static_cast<double>(dump_.steady_ns) - static_cast<double>(ns);
  }
  // The latest collective of a rank, null when there is none.
  static const FlightEntry* place(const FlightRank& rank) {
    for (auto entry = rank.entries.rbegin(); entry != rank.entries.rend(); ++entry)
      if (entry->sequence != 0) return &*entry;
    return nullptr;
  }
  static const FlightEntry* at(const FlightRank& rank, std::uint64_t sequence) {
    for (const FlightEntry& entry : rank.entries)
      if (entry.sequence == sequence) return &entry;
    return nullptr;
  }

  void say_gone() {
    for (const FlightRank* rank : ranks_) {
      if (rank->state == RankState::alive) continue;
      std::string line = fmt::format("rank {} left the group", name(*rank));
      if (!rank->recorded) {
        if (rank->state == RankState::dead)
          line = fmt::format("rank {} is gone: its process, its machine or the way to it", name(*rank));
        lines_.push_back(line + "; what it had called is not known here");
        continue;
      }
      if (rank->state == RankState::dead)
        line = fmt::format("rank {} died (signal {})", name(*rank),
                           rank->signal == 0 ? "unknown" : fmt::format("{}", rank->signal));
      if (const FlightEntry* last = place(*rank); !last)
        line += "; it had called nothing";
      else if (over(*last))
        line += fmt::format("; its last operation was {}, {}, {} {} ago", last->sequence, call_of(*last),
                            last->state == FlightState::done ? "finished" : "failed",
                            duration_text(since(last->end_ns)));
      else
        line += fmt::format("; it was in operation {}, {}", last->sequence, call_of(*last));
      lines_.push_back(std::move(line));
    }
  }

  // Only the first matters: after it the group has failed.
  std::optional<std::uint64_t> first_mismatch() const {
    std::map<std::uint64_t, std::string> called;
    std::optional<std::uint64_t> first;
    for (const FlightRank* rank : ranks_)
      for (const FlightEntry& entry : rank->entries) {
        if (entry.sequence == 0) continue;
        const auto [known, fresh] = called.emplace(entry.sequence, call_of(entry));
        if (!fresh && known->second != call_of(entry) && (!first || entry.sequence < *first))
          first = entry.sequence;
      }
    return first;
  }

  void say_mismatch(std::uint64_t sequence) {
    Clauses called;
    for (const FlightRank* rank : ranks_)
      if (const FlightEntry* entry = at(*rank, sequence)) {
        const std::string text = "called " + escaped(call_of(*entry));
        called.add(name(*rank), text, text);
      }
    say_operation(sequence, called.joined(", "));
  }

  // The operations that somebody stands in, or failed in last. The dead are spoken of elsewhere.
  std::set<std::uint64_t> stuck() const {
    std::set<std::uint64_t> sequences;
    for (const FlightRank* rank : ranks_) {
      const FlightEntry* last = place(*rank);
      if (last && last->state != FlightState::done && rank->state != RankState::dead)
        sequences.insert(last->sequence);
    }
    return sequences;
  }

  void say_waiting(std::uint64_t sequence) {
    Clauses inside;
    for (const FlightRank* rank : ranks_) {
      const FlightEntry* entry = place(*rank);
      if (!entry || entry->sequence != sequence || rank->state == RankState::dead) continue;
      const std::string call = escaped(call_of(*entry));
      const std::string by = entry->algorithm.empty() ? "" : fmt::format(" by {}", escaped(entry->algorithm));
      switch (entry->state) {
        case FlightState::waiting:
          inside.add(name(*rank), "waits in " + call + " for {}", "wait in " + call + " for {}",
                     since(entry->begin_ns));
          break;
        case FlightState::running:
          inside.add(name(*rank), "runs " + call + by + " for {}", "run " + call + by + " for {}",
                     since(entry->begin_ns));
          break;
        case FlightState::failed: {
          const std::string text = "failed in " + call + by + " after {}";
          inside.add(name(*rank), text, text,
                     static_cast<double>(entry->end_ns) - static_cast<double>(entry->begin_ns));
          break;
        }
        case FlightState::done:  // said below
          break;
      }
    }
    say_operation(sequence, inside.joined(", "));
  }

  // "operation N of group G: <inside>; <those who are not in it>".
  void say_operation(std::uint64_t sequence, const std::string& inside) {
    Clauses others;
    for (const FlightRank* rank : ranks_) add_elsewhere(others, *rank, sequence);
    lines_.push_back(fmt::format("operation {} of group {}: {}{}{}", sequence, dump_.group, inside,
                                 others.empty() ? "" : "; ", others.joined("; ")));
  }

  // Where a rank is that does not stand in operation `sequence`.
  void add_elsewhere(Clauses& others, const FlightRank& rank, std::uint64_t sequence) const {
    if (!rank.recorded) return;
    const FlightEntry* last = place(rank);
    const bool dead = rank.state == RankState::dead;
    const auto add = [&](const std::string& text, const std::string& many, double ns = 0) {
      others.add(name(rank), text, many, ns);
    };
    if (!last) {
      if (dead)
        add("died before it called anything", "died before they called anything");
      else
        add("has called nothing", "have called nothing");
    } else if (last->sequence < sequence) {
      const std::string missing = fmt::format("not called {}", sequence);
      const std::string where = fmt::format("at operation {}", last->sequence);
      if (dead)
        add(fmt::format("died {} and has {}", where, missing),
            fmt::format("died {} and have {}", where, missing));
      else if (last->state == FlightState::done)
        add(fmt::format("is {}, finished {{}} ago, and has {}", where, missing),
            fmt::format("are {}, finished {{}} ago, and have {}", where, missing), since(last->end_ns));
      else
        add(fmt::format("is still {} and has {}", where, missing),
            fmt::format("are still {} and have {}", where, missing));
    } else if (last->sequence > sequence) {
      add(fmt::format("is past it, at operation {}", last->sequence),
          fmt::format("are past it, at operation {}", last->sequence));
    } else if (last->state == FlightState::done) {
      add("finished it {} ago", "finished it {} ago", since(last->end_ns));
    } else if (dead) {
      add("died in it", "died in it");
    }
  }

  void say_point_to_point() {
    for (const FlightRank* rank : ranks_) {
      if (rank->entries.empty() || rank->state == RankState::dead) continue;
      const FlightEntry& last = rank->entries.back();
      if (last.sequence != 0 || last.state == FlightState::done) continue;
      if (last.state == FlightState::failed)
        lines_.push_back(fmt::format(
            "rank {} failed in {} after {}", name(*rank), call_of(last),
            duration_text(static_cast<double>(last.end_ns) - static_cast<double>(last.begin_ns))));
      else
        lines_.push_back(fmt::format("rank {} waits in {} for {}", name(*rank), call_of(last),
                                     duration_text(since(last.begin_ns))));
    }
  }

  void say_quiet() {
    std::uint64_t last = 0;
    for (const FlightRank* rank : ranks_)
      if (const FlightEntry* entry = place(*rank)) last = std::max(last, entry->sequence);
    lines_.push_back(
        last == 0 ? fmt::format("group {}: no operation is recorded", dump_.group)
                  : fmt::format("group {}: nobody waits; the last operation is {}", dump_.group, last));
  }

  void say_unknown() {
    std::set<int> known;
    for (const FlightRank* rank : ranks_) known.insert(rank->rank);
    std::vector<int> unknown;
    for (int rank = 0; rank < dump_.size; ++rank)
      if (!known.contains(rank)) unknown.push_back(name(rank));
    std::sort(unknown.begin(), unknown.end());
    if (!unknown.empty()) lines_.push_back(fmt::format("nothing is known of {}", rank_list(unknown)));
  }

  const FlightDump& dump_;
  std::vector<const FlightRank*> ranks_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> summary(const FlightDump& dump) { return Summary(dump).lines(); }

}  // namespace lockstep
