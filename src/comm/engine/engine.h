// An engine executes whole collectives for one rank of one group. Ours (shm) runs the algorithms of
// comm/algo over channels; MPI, Gloo and NCCL bring their own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/call.h"
#include "comm/rank_names.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/memory.h"

namespace lockstep {

class Selector;

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::vector<int>& nodes() const = 0;  // node of each rank

  // Empty when the engine can run such a call, else why not ("gloo has no product for bf16").
  virtual std::string refuses(const Call& call) const = 0;
  // The algorithms it has for a collective, the chosen one not included. Never empty for a collective
  // it runs: vendors' engines name theirs "native".
  virtual std::vector<std::string> algorithms(Collective what) const = 0;

  // Runs the call to its end on this thread. Throws typed errors; after one that is sticky the engine
  // is failed and run throws it again at once.
  virtual void run(const Call& call) = 0;

  // Opens a call whose data another way than this engine's moves: all ranks meet and compare what they
  // called, as in run(), and throw what run() would. The call's divisor, which another rank may have told.
  virtual double open(const Call& call) = 0;

  virtual CommMemory allocate(std::size_t bytes) = 0;

  // Gives the group up: `error` becomes its failure, unless it has one, and the peers are told as far as that
  // goes without waiting. For a group that stands on several engines.
  virtual void fail(const Error& error) noexcept { (void)error; }
  // What the ranks are called in messages. An engine names those of a sub-group by itself; it is told when
  // its group is a part of the one that the user knows.
  virtual void call_ranks(RankNames names) = 0;
  virtual RankNames rank_names() const = 0;

  // For a group that stands on several engines: `call` runs on another of them.
  virtual void announce(const Call& call) { (void)call; }
  // While this engine waits, it takes in the news of `whole`, for peers who run theirs there, and calls
  // `idle` several times a second. Either may be null. False: it does neither.
  virtual bool watch(Engine* whole, std::function<void()> idle) { return (void)whole, (void)idle, false; }
  // This rank waits, on another of them, for these: those that wait for it here should know.
  virtual void tell_waits(const std::vector<int>& ranks) noexcept { (void)ranks; }
  // Throws what the engine failed with, or fails with now, if its peers say so.
  virtual void catch_up() {}

  // The engine of the sub-group that this rank joins, to be known as `name`; null for a negative colour.
  // `call` is the split itself.
  virtual std::unique_ptr<Engine> split(int colour, int key, const std::string& name, const Call& call) = 0;

  // What the engine knows of a peer without asking it, for the flight recorder's dump. An engine that
  // shares no memory knows its own ring only.
  // Empty when it can't be read from here; the front door then keeps a ring of its own.
  virtual std::span<std::byte> flight_memory(int rank) { return (void)rank, std::span<std::byte>(); }
  // "joined", "left", "dead" or "unknown".
  virtual std::string peer_state(int rank) const { return (void)rank, "unknown"; }
  virtual int peer_pid(int rank) const { return (void)rank, 0; }  // 0 if unknown

  // How long such a call should take by the cost table, once all ranks are there; 0 when the engine has none.
  virtual double expected_seconds(const Call& call) const { return (void)call, 0.0; }

  // For people: the links of the group, and what follows from them; empty when nothing was measured.
  virtual std::string topology() const { return {}; }
  // So many ranks of each node use its links at once, though one of them is in this group.
  virtual void share_links(int ranks) { (void)ranks; }

  // The table from which calls choose their algorithm; null when the engine chooses by itself.
  virtual Selector* selector() { return nullptr; }
  // Whether peers reach `data` directly.
  virtual bool reaches(const void* data) const { return (void)data, false; }
};

}  // namespace lockstep
