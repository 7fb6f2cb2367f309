// Every environment variable that changes what Lockstep does, in one place.
// (The variables by which a launcher says who a worker is are in base/identity.h.)
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct Knobs {
  // LOCKSTEP_LOG: trace, debug, info, warn, error or off.
  std::string log = "warn";

  // LOCKSTEP_ALGORITHM: use this algorithm for every collective that has it, instead of the cost
  // table's choice. Empty: choose.
  std::string algorithm;

  // LOCKSTEP_ENGINE: what carries the collectives. auto: shared memory on one machine; on several, shared
  // memory inside each and across them MPI where MPI started the job, TCP elsewhere; for a program on GPUs
  // (InitOptions::device) ipc on one machine, nccl on several. Or one by name: shm, tcp, mpi, gloo, ipc, nccl
  // or, inside nodes and across them, two: shm+tcp. init() says what the program has.
  std::string engine = "auto";

  // LOCKSTEP_TLS: on or off for connections between workers; auto: on when they are on several machines.
  // (The job's secret, LOCKSTEP_SECRET or LOCKSTEP_SECRET_FILE, is checked on every connection in any case.)
  std::string tls = "auto";

  // LOCKSTEP_TCP_STREAMS: connections between two workers that share the bytes of a large message.
  int tcp_streams = 1;

  // LOCKSTEP_TIMEOUT_S: how long an operation may wait for its peers, unless the call says otherwise.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);

  // LOCKSTEP_WARN_AFTER_S: how long an operation waits for its peers before it says whom it waits for; it
  // says so again each time the wait has become twice as long. 0: never.
  std::chrono::milliseconds warn_after = std::chrono::seconds(10);

  // LOCKSTEP_INIT_TIMEOUT_S: how long init() waits for all workers to come.
  std::chrono::milliseconds init_timeout = std::chrono::minutes(2);

  // LOCKSTEP_SPIN_US: how long a waiting rank polls before it sleeps in the kernel. Empty: 100 µs when
  // every rank has a core of its own, none otherwise.
  std::optional<std::chrono::microseconds> spin;

  // LOCKSTEP_ARENA: address space kept for each rank's comm memory. Only what is used takes memory.
  std::uint64_t arena_bytes = std::uint64_t{64} << 30;

  // LOCKSTEP_HUGE_PAGES: 1 asks the kernel for huge pages under comm memory, 0 does not.
  bool huge_pages = true;

  // LOCKSTEP_DUMP_DIR: where a failed group writes its flight recorder. Empty: nowhere.
  // (`lockstep run` sets it.)
  std::string dump_dir;

  // LOCKSTEP_CACHE_DIR: where measured costs are kept. Default: $XDG_CACHE_HOME/lockstep, or
  // ~/.cache/lockstep. "off": measure nothing, keep nothing, use the built-in costs.
  std::string cache_dir;

  // LOCKSTEP_NODE_SIZE: pretend that every so many consecutive ranks share a machine, to try
  // hierarchical algorithms on one machine. 0: ask the system.
  int node_size = 0;

  // Reads the environment; a variable that is set but empty counts as not set. Throws UsageError that names
  // the variable, its value and what is accepted; a LOCKSTEP_ variable that nobody knows is an error too.
  static Knobs from_environment();
};

}  // namespace lockstep
