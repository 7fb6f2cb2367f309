// Memory that all ranks of a group see.
#include <algorithm>
#include <charconv>

#include "comm/world/group_impl.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/device.h"
#include "lockstep/comm/group.h"

namespace lockstep {
namespace {

Commons* commons_of(Engine& engine) {
  Composable* const composable = engine.composable();
  return composable == nullptr ? nullptr : composable->commons();
}

void check_bytes(const Group& group, std::size_t bytes) {
  const std::vector<std::int64_t> wanted =
      group.all_gather(static_cast<std::int64_t>(bytes), {.purpose = "how much common memory"});
  for (int r = 1; r < group.size(); ++r)
    if (wanted[static_cast<std::size_t>(r)] != wanted[0])
      throw UsageError("allocate_shared: " + group.named(0) + " asks for " + std::to_string(wanted[0]) +
                       " bytes, " + group.named(r) + " for " +
                       std::to_string(wanted[static_cast<std::size_t>(r)]) +
                       "; accepted: the same everywhere");
}

// Every rank's, or nobody's: who can't map it says so to all.
CommMemory share_on_device(const Group& group, DeviceCommons& commons, std::size_t bytes, Device device,
                           int maker) {
  std::string found;
  std::string why;
  if (group.rank() == maker) try {
      found = commons.share(bytes, device);
    } catch (const SystemError& error) {
      why = error.what();
    }
  group.broadcast(why, maker, {.purpose = "whether there is common memory"});
  if (!why.empty()) throw SystemError("allocate_shared: " + group.named(maker) + ": " + why);
  group.broadcast(found, maker, {.purpose = "where the common memory is"});
  CommMemory memory;
  try {
    memory = commons.hold(found, bytes, device);
  } catch (const SystemError& error) {
    why = error.what();
  }
  const std::vector<std::string> all =
      group.all_gather(why, {.purpose = "whether all have the common memory"});
  for (int r = 0; r < group.size(); ++r)
    if (const std::string& problem = all[static_cast<std::size_t>(r)]; !problem.empty())
      throw SystemError("allocate_shared: " + group.named(r) + ": " + problem);
  group.barrier(device, {.purpose = "until the common memory is zero"});
  return memory;
}

}  // namespace

bool Group::shares_memory() const { return size() == 1 || commons_of(impl().engine()) != nullptr; }

bool Group::shares_device(Device device) const {
  std::string own;  // empty: it has none in common with anybody
  if (DeviceCommons* const commons = impl().engine().device_commons();
      commons != nullptr && device.kind != Device::Kind::cpu)
    try {
      own = commons->identity(device);
    } catch (const SystemError& error) {
      log().debug("group {}: {}", name(), error.what());
    }
  const std::vector<std::string> all = all_gather(own, {.purpose = "who is on which device"});
  return !own.empty() && std::ranges::count(all, own) == std::ssize(all);
}

CommMemory Group::allocate_shared(std::size_t bytes, Device device, int maker) const {
  const bool on_device = device.kind != Device::Kind::cpu;
  if (on_device && size() > 1 && !shares_device(device))
    throw UsageError("allocate_shared: the ranks of group " + name() + " have no memory in common on " +
                     to_string(device) + " over " + engine() + "; accepted: ranks on one GPU, engine ipc");
  if (!on_device && !shares_memory())
    throw UsageError("allocate_shared: the ranks of group " + name() + " have no memory in common over " +
                     engine() + "; accepted: ranks of one machine, engine shm");
  if (size() == 1) return allocate(bytes, device);
  check_bytes(*this, bytes);
  if (on_device) return share_on_device(*this, *impl().engine().device_commons(), bytes, device, maker);
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
