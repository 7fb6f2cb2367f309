// MPI in this process: started once, at the thread level that asynchronous work needs, with every call
// through one door and its error codes as our typed errors. Everything here is inside lockstep_mpi.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>

namespace lockstep::mpi {

class Line;

// MPI is initialised once a process and can't be started again after its end, so its lifetime is the
// process's: the one piece of global state, and it is MPI's.
class Runtime {
 public:
  // Initialises MPI unless the program has; then also finalises it at exit. Throws SystemError when MPI gives
  // less than MPI_THREAD_SERIALIZED: calls come from the program's thread and from each group's.
  static Runtime& get();

  // Held around every MPI call. With MPI_THREAD_MULTIPLE it locks nothing; with MPI_THREAD_SERIALIZED it is
  // one mutex for the process, which is enough because our calls are short: they post, test and probe.
  [[nodiscard]] std::unique_lock<std::mutex> door() {
    return multiple_ ? std::unique_lock<std::mutex>() : std::unique_lock(mutex_);
  }
  bool multiple() const { return multiple_; }

  // After a failure MPI_Finalize may wait for ever for a peer: it is left out.
  void failed() { failed_.store(true, std::memory_order_relaxed); }

  // A line that this process uses no more, but whose peers may still: kept until they have left too.
  void retire(std::shared_ptr<Line> line) noexcept;

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

 private:
  Runtime();
  ~Runtime();
  void sweep() noexcept;

  bool multiple_ = false;
  bool ours_ = false;  // we initialised it
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::mutex retired_mutex_;
  std::list<std::shared_ptr<Line>> retired_;
};

// Throws the error that `code` stands for: MPI_ERR_TRUNCATE MismatchError, a failed process PeerError
// (`peer`, or -1 when it is not known which), anything else SystemError.
[[noreturn]] void raise(int code, const std::string& what, int peer = -1);

// One MPI call: through the door, with its result checked.
template <class F>
void call(const char* what, F&& body) {
  const int code = [&] {
    const auto door = Runtime::get().door();
    return body();
  }();
  if (code != MPI_SUCCESS) raise(code, what);
}

}  // namespace lockstep::mpi
