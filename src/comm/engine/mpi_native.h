// MPI's own collectives. By its non-blocking calls they are posted, then asked for until they are done, the
// time is over or a peer gives up; by its blocking ones they are MPI's alone (with Open MPI twice as fast).
//
// Refused: reductions of f16 and bf16, which MPI does not have, and arithmetic on i8 and u8, in which MPI
// libraries differ. min and max of NaN, and the order of sums, are MPI's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/call/capabilities.h"
#include "comm/channel/mpi_channel.h"
#include "lockstep/comm/memory.h"

namespace lockstep {

class MpiNative {
 public:
  explicit MpiNative(MpiChannel& channel) : channel_(channel) {}

  // By its non-blocking calls, "native", or its blocking ones, "blocking"; `multiple`: this MPI gives
  // MPI_THREAD_MULTIPLE.
  static std::vector<Offer> offers(bool multiple);

  // Between channel.begin and the next. avg is left as the sum. MPI can't end a collective early, so that one
  // which failed leaves its memory with MPI: non-blocking calls, which can fail while they are under way,
  // work on memory of ours, which then stays until the process ends. Blocking ones work on the caller's.
  enum class Calls { non_blocking, blocking };
  void run(const Call& call, Calls calls);

 private:
  // `post` makes the non-blocking call into its request, or the blocking one when that is null.
  template <class Post>
  void request(const char* what, std::size_t bytes, Post&& post);
  // Memory for one call of MPI's: `in` and `out` in turn.
  struct Stage {
    std::vector<std::byte> in;
    std::vector<std::byte> out;
  };
  template <class Body>
  void staged(const Call& call, Body&& body);
  void piece(const Call& call, std::size_t offset, int count);
  void whole(const Call& call);
  void reduce(const Call& call, const std::byte* in, std::byte* out, int count);
  void reduce_scatter(const Call& call);
  void receive(const Call& call, std::byte* out, int count);

  MpiChannel& channel_;
  Calls calls_ = Calls::non_blocking;
  CommMemory scratch_;
  std::shared_ptr<Stage> stage_ = std::make_shared<Stage>();
};

}  // namespace lockstep
