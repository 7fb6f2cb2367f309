// How a group in shared memory comes apart into sub-groups.
#include <algorithm>

#include "comm/engine/shm_engine.h"

namespace lockstep {

// Two rounds: who wants what; then the first member of each new group says where its control block is.
std::unique_ptr<Engine> ShmEngine::join_part(int colour, int key, const std::string& name, const Call& call) {
  gather(call, nullptr, colour, key);
  std::vector<int> ranks;  // of this group, in the new group's order
  std::vector<std::int64_t> keys;
  for (int r = 0; r < size(); ++r) {
    keys.push_back(descriptor(r).payload[1]);
    if (descriptor(r).payload[0] == colour && colour >= 0) ranks.push_back(r);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
  });

  const bool leader = !ranks.empty() && ranks.front() == rank();
  std::shared_ptr<shm::Control> control;
  std::int64_t offset = 0;
  if (leader) {
    shm::Control& block =
        session_->make_block(members_[static_cast<std::size_t>(rank())], static_cast<int>(ranks.size()));
    control = {session_, &block};
    offset = static_cast<std::int64_t>(*session_->arena().offset_of(&block, 1));
  }
  gather(call, nullptr, offset);
  if (colour < 0) return nullptr;
  if (!leader) {
    const std::int64_t at = descriptor(ranks.front()).payload[0];
    control = {session_,
               reinterpret_cast<shm::Control*>(session_->arena().at(static_cast<std::uint64_t>(at)))};
  }
  std::vector<int> members;
  for (const int r : ranks) members.push_back(members_[static_cast<std::size_t>(r)]);
  const int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  // As the inside of a node, as in the group that is being split until the whole of it is.
  const RankNames names = call.whole == nullptr ? rank_names().split(name, ranks) : rank_names().part(ranks);
  auto engine = std::make_unique<ShmEngine>(session_, std::move(control), names, place, std::move(members),
                                            std::string(selector_.forced()));
  engine->selector_ = selector_;
  if (engine->size() > 1) engine->declare(no_pages_);
  return engine;
}

}  // namespace lockstep
