#include "offload/transfers.h"

#include <cerrno>

namespace lockstep {

std::unique_ptr<Transfers> make_transfers(const ScratchFile& file, std::size_t most, OffloadIo io) {
  if (io != OffloadIo::threads) {
    if (auto ring = make_uring_transfers(file, most)) return ring;
    if (io == OffloadIo::io_uring) throw OffloadError("cannot set up io_uring", errno);
  }
  return make_thread_transfers(file, most);
}

}  // namespace lockstep
