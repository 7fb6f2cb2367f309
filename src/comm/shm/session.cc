#include "comm/shm/session.h"

#include <algorithm>

namespace lockstep::shm {

ArenaShape arena_shape(int ranks, std::uint64_t region_bytes) {
  return {.ranks = ranks, .head_bytes = Control::bytes(ranks), .region_bytes = region_bytes};
}

Session::Session(std::shared_ptr<Arena> arena, std::vector<int> nodes, int cores)
    : arena_(std::move(arena)), nodes_(std::move(nodes)), cores_(cores) {}

void Session::watch(std::vector<UniqueFd> pidfds) {
  watch_ = std::make_unique<Watch>(std::move(pidfds), [this](int rank) { died(rank); });
}

Session::Ticket Session::enrol(Meeting& meeting, std::vector<int> members) {
  const std::lock_guard lock(mutex_);
  groups_.emplace_front(&meeting, std::move(members));
  const auto& [enrolled, ranks] = groups_.front();
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (std::find(dead_.begin(), dead_.end(), ranks[i]) != dead_.end()) enrolled->peer_died(static_cast<int>(i));
  return groups_.begin();
}

void Session::withdraw(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  groups_.erase(ticket);
}

void Session::keep(std::shared_ptr<Control> block) {
  const std::lock_guard lock(mutex_);
  std::erase_if(kept_, [](const auto& b) { return b->left.load(std::memory_order_acquire) == b->members; });
  kept_.push_back(std::move(block));
}

void Session::died(int world_rank) {
  const std::lock_guard lock(mutex_);
  dead_.push_back(world_rank);
  for (auto& [meeting, members] : groups_) {
    const auto at = std::find(members.begin(), members.end(), world_rank);
    if (at != members.end()) meeting->peer_died(static_cast<int>(at - members.begin()));
  }
}

}  // namespace lockstep::shm
