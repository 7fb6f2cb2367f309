// What the ranks of a group are called in messages, decided here for all engines: by their world rank, which
// is what launchers, logs and people know a worker by. Where a rank has another number in the group that
// speaks, that one follows: "rank 3 (1 in world/0.1)".
//
// PeerError::rank() and TimeoutError::missing() are numbers of the group that the program called, whatever
// the text says: it is there that the program can use them.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

class RankNames {
 public:
  RankNames() = default;
  // `world[r]`: the world rank of rank r of group `group`, which the program knows by this name.
  RankNames(std::string group, std::vector<int> world) : group_(std::move(group)), world_(std::move(world)) {
    for (int r = 0; r < size(); ++r) numbers_.push_back(r);
  }

  // Ranks that are called by their numbers.
  static RankNames plain(std::string group, int size) {
    std::vector<int> numbers;
    for (int r = 0; r < size; ++r) numbers.push_back(r);
    return {std::move(group), std::move(numbers)};
  }

  // For an engine that carries a part of the group, `ranks` of it, under the program's group all the same.
  RankNames part(const std::vector<int>& ranks) const {
    RankNames some;
    some.group_ = group_;
    for (int r : ranks) {
      some.numbers_.push_back(number(r));
      some.world_.push_back(world(r));
    }
    return some;
  }
  // For a group of its own, made of `ranks` of this one.
  RankNames split(std::string group, const std::vector<int>& ranks) const {
    return {std::move(group), part(ranks).world_};
  }

  // The program's group, whatever part of it this is.
  const std::string& group() const { return group_; }
  int size() const { return static_cast<int>(world_.size()); }
  int world(int rank) const { return world_[static_cast<std::size_t>(rank)]; }
  // Its rank in the program's group.
  int number(int rank) const { return numbers_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& numbers() const { return numbers_; }
  // Which rank has this number; -1: none here.
  int of_number(int number) const {
    const auto at = std::find(numbers_.begin(), numbers_.end(), number);
    return at == numbers_.end() ? -1 : static_cast<int>(at - numbers_.begin());
  }

  // "3", or "3 (1 in world/0.1)".
  std::string brief(int rank) const {
    std::string text = std::to_string(world(rank));
    if (world(rank) != number(rank)) text += " (" + std::to_string(number(rank)) + " in " + group_ + ")";
    return text;
  }
  std::string named(int rank) const { return "rank " + brief(rank); }

 private:
  std::string group_;
  std::vector<int> numbers_;
  std::vector<int> world_;
};

// Where the names of a group's ranks are kept for all that speak of them: its engine, its channel, the thread
// that watches its peers. From any thread.
class Naming {
 public:
  explicit Naming(RankNames names) : names_(std::move(names)) {}

  RankNames get() const {
    const std::lock_guard lock(mutex_);
    return names_;
  }
  // Those of its parts follow.
  void set(RankNames names) {
    for (const Part& part : parts_) part.naming->set(names.part(part.ranks));
    const std::lock_guard lock(mutex_);
    names_ = std::move(names);
  }
  // `ranks` of this group are those of another that carries a part of its calls.
  void add_part(std::shared_ptr<Naming> part, std::vector<int> ranks) {
    parts_.push_back({std::move(part), std::move(ranks)});
  }

 private:
  struct Part {
    std::shared_ptr<Naming> naming;
    std::vector<int> ranks;
  };
  mutable std::mutex mutex_;
  RankNames names_;
  std::vector<Part> parts_;
};

}  // namespace lockstep
