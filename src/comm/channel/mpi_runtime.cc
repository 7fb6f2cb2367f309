#include "comm/channel/mpi_runtime.h"

#include <array>
#include <chrono>
#include <thread>

#include "comm/channel/mpi_line.h"
#include "lockstep/base/error.h"

namespace lockstep::mpi {
namespace {

const char* level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    default: return "MPI_THREAD_MULTIPLE";
  }
}

// "this process failed" in the dialects of MPI 4, ULFM and MPICH.
bool is_peer_failure(int error_class) {
#ifdef MPI_ERR_PROC_ABORTED
  if (error_class == MPI_ERR_PROC_ABORTED) return true;
#endif
#ifdef MPI_ERR_PROC_FAILED
  if (error_class == MPI_ERR_PROC_FAILED) return true;
#endif
#ifdef MPIX_ERR_PROC_FAILED
  if (error_class == MPIX_ERR_PROC_FAILED) return true;
#endif
#ifdef MPIX_ERR_REVOKED
  if (error_class == MPIX_ERR_REVOKED) return true;
#endif
  return (void)error_class, false;
}

}  // namespace

Runtime& Runtime::get() {
  static Runtime runtime;
  return runtime;
}

Runtime::Runtime() {
  int initialized = 0;
  int provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  if (initialized != 0) {
    if (const int code = MPI_Query_thread(&provided); code != MPI_SUCCESS) raise(code, "MPI_Query_thread");
  } else {
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    if (code != MPI_SUCCESS) raise(code, "MPI_Init_thread");
    ours_ = true;
  }
  if (provided < MPI_THREAD_SERIALIZED)
    throw SystemError(
        std::string("MPI gives ") + level_name(provided) +
        "; asynchronous collectives need MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE: " +
        (ours_ ? "use an MPI that was built with threads"
               : "call MPI_Init_thread with MPI_THREAD_MULTIPLE, or let lockstep initialise MPI"));
  multiple_ = provided >= MPI_THREAD_MULTIPLE;
}

// MPI wants every message received before its end, so the peers' farewells are awaited. That waits no longer
// than MPI_Finalize itself would, which is for the last process to come to it.
Runtime::~Runtime() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0 || !ours_) return;
  while (!failed_.load(std::memory_order_relaxed)) {
    sweep();
    if (retired_.empty()) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (!failed_.load(std::memory_order_relaxed)) {
    MPI_Finalize();
    return;
  }
  // MPI is not ended, and may still write where requests of failed lines point: their memory stays.
  static const auto* const never_freed = new std::list<std::shared_ptr<Line>>(std::move(retired_));
  (void)never_freed;
}

void Runtime::retire(std::shared_ptr<Line> line) noexcept {
  {
    const std::lock_guard lock(retired_mutex_);
    retired_.push_back(std::move(line));
  }
  sweep();
}

void Runtime::sweep() noexcept {
  const std::lock_guard lock(retired_mutex_);
  for (auto at = retired_.begin(); at != retired_.end();) {
    try {
      (*at)->listen();
    } catch (const Error&) {
      failed();
    }
    if ((*at)->failed()) failed();
    if ((*at)->deserted())
      at = retired_.erase(at);  // frees its communicator
    else
      ++at;
  }
}

void raise(int code, const std::string& what, int peer) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  int error_class = MPI_ERR_OTHER;
  {
    const auto door = Runtime::get().door();
    MPI_Error_string(code, text.data(), &length);
    MPI_Error_class(code, &error_class);
  }
  std::string message = what + ": " + std::string(text.data(), static_cast<std::size_t>(length));
  for (char& c : message)
    if (c == '\n') c = ' ';
  if (error_class == MPI_ERR_TRUNCATE) throw MismatchError(message + " (a peer sent more than was expected)");
  if (is_peer_failure(error_class)) throw PeerError(peer, message);
  throw SystemError(message);
}

}  // namespace lockstep::mpi
