// Memory on one GPU that all ranks of a group have in common: a block of comm memory that one of them has
// taken, and the others map.
//
// CUDA wants a block that others map to stay until they have let go of it. So a rank that has no use for it
// any more says so in host memory that all of them share, once its streams are done with it; the maker's
// block goes behind the last. Where somebody never says it, killed or still reading, the block stays as long
// as the maker's process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "comm/call/engine.h"

namespace lockstep {

class IpcCommons final : public DeviceCommons {
 public:
  // Null where the carrier's ranks share no memory on the host.
  static std::shared_ptr<IpcCommons> make(std::shared_ptr<Engine> carrier);

  std::string identity(Device device) override;  // its UUID
  std::string share(std::size_t bytes, Device device) override;
  CommMemory hold(const std::string& found, std::size_t bytes, Device device) override;

  // Lets go of what this process has no use for any more, as far as its streams and its peers are. With every
  // call: peers' memory stays until this process has said so.
  static void reap() noexcept;

 private:
  IpcCommons(std::shared_ptr<Engine> carrier, Commons& host) : carrier_(std::move(carrier)), host_(host) {}

  std::shared_ptr<Engine> carrier_;
  Commons& host_;  // its
  std::mutex mutex_;
  std::map<std::uint64_t, CommMemory> made_;  // by their block's id, until this rank takes hold of them
};

}  // namespace lockstep
