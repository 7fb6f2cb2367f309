// Memory that all ranks of a group see.
#include <charconv>

#include "comm/world/group_impl.h"
#include "lockstep/comm/group.h"

namespace lockstep {
namespace {

Commons* commons_of(Engine& engine) {
  Composable* const composable = engine.composable();
  return composable == nullptr ? nullptr : composable->commons();
}

}  // namespace

bool Group::shares_memory() const { return size() == 1 || commons_of(impl().engine()) != nullptr; }

CommMemory Group::allocate_shared(std::size_t bytes) const {
  if (!shares_memory())
    throw UsageError("allocate_shared: the ranks of group " + name() + " have no memory in common over " +
                     engine() + "; accepted: ranks of one machine, engine shm");
  if (size() == 1) return allocate(bytes);
  const std::vector<std::int64_t> wanted =
      all_gather(static_cast<std::int64_t>(bytes), {.purpose = "how much common memory"});
  for (int r = 1; r < size(); ++r)
    if (wanted[static_cast<std::size_t>(r)] != wanted[0])
      throw UsageError("allocate_shared: " + named(0) + " asks for " + std::to_string(wanted[0]) +
                       " bytes, " + named(r) + " for " + std::to_string(wanted[static_cast<std::size_t>(r)]) +
                       "; accepted: the same everywhere");
  Commons& commons = *commons_of(impl().engine());
  // The place in digits, or why there is none in words.
  std::string answer;
  if (rank() == 0) try {
      answer = std::to_string(commons.share(bytes));
    } catch (const SystemError& error) {
      answer = error.what();
    }
  broadcast(answer, 0, {.purpose = "where the common memory is"});
  std::uint64_t place = 0;
  const char* const end = answer.data() + answer.size();
  if (std::from_chars(answer.data(), end, place).ptr != end) throw SystemError(answer);
  return commons.hold(place, bytes);
}

}  // namespace lockstep
