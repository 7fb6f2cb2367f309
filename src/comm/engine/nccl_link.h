// One NCCL communicator: how it is made, called without ever blocking, watched and aborted.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/agree/group_failure.h"
#include "lockstep/base/clock.h"
#include "lockstep/comm/device.h"

namespace lockstep {

class NcclLink {
 public:
  struct Facts {
    int rank = 0;
    int size = 1;
    int index = 0;               // of the GPU
    std::string who;             // "rank 2 of group world", for messages
    std::function<void()> news;  // throws what else the group failed with; from any thread
  };
  // Collective: all ranks with rank 0's id. Throws TimeoutError, or what NCCL says.
  NcclLink(Facts facts, const ncclUniqueId& id, std::chrono::milliseconds timeout);
  // Waits for the last call, for a while.
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  static ncclUniqueId make_id();

  ncclComm_t comm() const { return comm_; }
  // Runs `body`, which makes calls on comm() and gives their result, and sees them through until NCCL has
  // taken them. `call` names them in messages.
  void put(const std::string& call, std::chrono::milliseconds timeout,
           const std::function<ncclResult_t()>& body);
  // The same of calls that belong together.
  void put_group(const std::string& call, std::chrono::milliseconds timeout,
                 const std::function<ncclResult_t()>& body);
  // What was put there ends at `end`, which may take so long.
  void watch(DeviceEvent end, std::string where, std::chrono::milliseconds timeout);

  // Throws what it failed with, if it has.
  void check() const { failure_.check(); }
  // Ends everything that is under way. From any thread.
  void abort(const Error& why) noexcept;

 private:
  void settle(ncclResult_t result, const std::string& call, const Deadline& deadline);
  [[noreturn]] void fail(ncclResult_t result, const std::string& call);
  std::string text(ncclResult_t result, const std::string& call) const;
  void serve();
  void look();

  Facts facts_;
  ncclComm_t comm_ = nullptr;
  std::timed_mutex calling_;  // of NCCL's functions: the communicator's calls come one at a time
  GroupFailure failure_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  bool aborted_ = false;
  DeviceEvent last_;
  std::string where_;
  std::chrono::milliseconds timeout_{0};
  Deadline deadline_ = Deadline::never();
  std::thread thread_;
};

}  // namespace lockstep
