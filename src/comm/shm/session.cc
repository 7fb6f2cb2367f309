#include "comm/shm/session.h"

#include <algorithm>

namespace lockstep::shm {

ArenaShape arena_shape(int ranks, std::uint64_t region_bytes) {
  return {.ranks = ranks, .head_bytes = Control::bytes(ranks), .region_bytes = region_bytes};
}

Session::Session(std::shared_ptr<Arena> arena, std::vector<int> nodes, int cores)
    : arena_(std::move(arena)), nodes_(std::move(nodes)), cores_(cores) {}

std::vector<int> Session::nodes_of(const std::vector<int>& ranks) const {
  std::vector<int> nodes;
  for (const int r : ranks) nodes.push_back(nodes_[static_cast<std::size_t>(r)]);
  return nodes;
}

void Session::watch(std::vector<UniqueFd> pidfds) {
  watch_ = std::make_unique<Watch>(std::move(pidfds), [this](int rank) { died(rank); });
}

Session::Ticket Session::enrol(Meeting& meeting, std::vector<int> members) {
  const std::lock_guard lock(mutex_);
  groups_.emplace_front(&meeting, std::move(members));
  const auto& [enrolled, ranks] = groups_.front();
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (std::find(dead_.begin(), dead_.end(), ranks[i]) != dead_.end())
      enrolled->peer_died(static_cast<int>(i));
  return groups_.begin();
}

void Session::withdraw(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  groups_.erase(ticket);
}

Session::~Session() {
  watch_.reset();
  sweep();
}

Control& Session::make_block(int rank, int members) {
  const std::lock_guard lock(mutex_);
  sweep();
  auto* const control =
      reinterpret_cast<Control*>(arena_->at(arena_->reserve(rank, Control::bytes(members))));
  control->members = static_cast<std::uint32_t>(members);
  blocks_.push_back({control, rank});
  return *control;
}

void Session::sweep() {
  std::erase_if(blocks_, [&](const Block& block) {
    const std::uint32_t members = block.control->members;
    if (block.control->left.load(std::memory_order_acquire) != members) return false;
    const auto* const data = reinterpret_cast<const std::byte*>(block.control);
    arena_->release(block.rank, static_cast<std::uint64_t>(data - arena_->at(0)),
                    Control::bytes(static_cast<int>(members)));
    return true;
  });
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
