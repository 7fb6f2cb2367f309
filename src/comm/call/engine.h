// An engine executes whole collectives for one rank of one group. Ours (shared memory, TCP) run the
// algorithms of comm/algo; MPI and Gloo bring their own beside them.
//
// What every engine is and has (its name and ranks, what it can do, how ranks are called in messages, that
// failure stays) is here once, as data and as code around the calls. What differs are the ten functions
// below, each of which every engine writes.
#pragma once

#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/call/call.h"
#include "comm/call/capabilities.h"
#include "comm/call/failure_record.h"
#include "comm/call/rank_names.h"
#include "comm/call/reach.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/memory.h"

namespace lockstep {

class Selector;

// What an engine declares when it is made.
struct EngineFacts {
  std::string name;                // "shm"
  int rank;                        // this one's
  std::vector<int> nodes;          // the node of each rank
  std::shared_ptr<Naming> naming;  // what the ranks are called in messages
  Capabilities can;
  Selector* selector;  // the table from which calls choose their algorithm
  // How its ranks have memory in common on a device that they share; null: they have none.
  std::shared_ptr<DeviceCommons> device_commons = nullptr;
};

// What an engine knows of a rank without asking it, for the flight recorder's dump.
struct PeerView {
  std::string state = "unknown";       // "joined", "left", "dead"
  int pid = 0;                         // 0: unknown
  std::span<std::byte> recorder = {};  // its flight recorder; empty: it can't be read from here
};

// How engines that carry one group together keep each other informed (node_engine.h): one carries the calls
// of some ranks while others wait for these on another.
class Composable {
 public:
  virtual ~Composable() = default;
  // `call` runs on another engine of the group.
  virtual void announce(const Call& call) = 0;
  // While this one waits, it takes in the news of `whole`, for peers who run theirs there, and calls `idle`
  // several times a second. Either may be null.
  virtual void watch(Composable* whole, std::function<void()> idle) = 0;
  // This rank waits, on another of them, for these: those that wait for it here should know. None: for ranks
  // that are not here.
  virtual void tell_waits(const std::vector<int>& ranks) noexcept = 0;
  // So many ranks of each node use its links at once, though one of them is in this group.
  virtual void share_links(int ranks) = 0;
  // Its ranks' memory, where they reach each other's; null: they don't.
  virtual Commons* commons() = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const char* name() const { return facts_.name.c_str(); }
  int rank() const { return facts_.rank; }
  int size() const { return static_cast<int>(facts_.nodes.size()); }
  const std::vector<int>& nodes() const { return facts_.nodes; }
  const Capabilities& capabilities() const { return facts_.can; }
  Selector* selector() const { return facts_.selector; }
  DeviceCommons* device_commons() const { return facts_.device_commons.get(); }

  // Empty when the engine can run such a call, else why not. Follows from its capabilities.
  std::string refuses(const Call& call) const {
    return facts_.can.refuses(name(), call, size(), call.algorithm);
  }
  std::vector<std::string> algorithms(Collective what) const { return facts_.can.algorithms(what); }

  // What the ranks are called in messages. An engine names those of a sub-group by itself; it is told when
  // its group is a part of the one that the user knows.
  RankNames rank_names() const { return facts_.naming->get(); }
  void call_ranks(RankNames names) { facts_.naming->set(std::move(names)); }
  const std::shared_ptr<Naming>& naming() const { return facts_.naming; }

  // Runs the call to its end on this thread. Throws typed errors. One that is not of usage fails the group:
  // the peers are told, and every later call throws it at once.
  void run(const Call& call) {
    refuse(call);
    guard(call, [&] { execute(call); });
  }
  // Opens a call whose data another way than this engine's moves: all ranks meet and compare what they
  // called, as in run(), and throw what run() would. The call's divisor, which another rank may have told.
  double open(const Call& call) {
    return guard(call, [&] { return meet(call); });
  }
  // The engine of the sub-group that this rank joins, to be known as `name`; null for a negative colour.
  // `call` is the split itself.
  std::unique_ptr<Engine> split(int colour, int key, const std::string& name, const Call& call) {
    return guard(call, [&] { return divide(colour, key, name, call); });
  }
  // Gives the group up: `error` becomes its failure, unless another rank was first.
  void fail(const Error& error) noexcept;

  // News of peers: what is known already, or also what comes within a moment.
  enum class News { known, awaited };

  // The ten: seven here, three behind run, open and split.
  virtual CommMemory allocate(std::size_t bytes, Device device) = 0;  // of a kind in capabilities()
  virtual bool reaches(const void* data) const = 0;                   // whether peers reach `data` directly
  // How long such a call should take by the table of costs, once all ranks are there; 0: there is no table.
  virtual double expected_seconds(const Call& call) const = 0;
  virtual PeerView peer(int rank) const = 0;
  // Makes `error` the group's failure, unless it has one, as far as that goes without waiting for a peer.
  virtual void tell_failure(const Error& error) noexcept = 0;
  // Throws what the group failed with, if it has.
  virtual void check(News news) = 0;
  // How it works together with others; null: it can't.
  virtual Composable* composable() = 0;

 protected:
  explicit Engine(EngineFacts facts) : facts_(std::move(facts)) {}

  // A call on a device is put on call.stream, behind what is there; it need not have run on return.
  virtual void execute(const Call& call) = 0;
  virtual double meet(const Call& call) = 0;
  virtual std::unique_ptr<Engine> divide(int colour, int key, const std::string& name, const Call& call) = 0;

  // Runs `body`, a call's whole way: nothing when the group has failed; and a rank that gives up in the
  // middle takes the group along, since its peers would wait for it in vain.
  template <class Body>
  std::invoke_result_t<Body> guard(const Call& call, Body&& body) {
    if (failure_) throw_record(*failure_);
    check(News::known);
    try {
      return body();
    } catch (const Error& error) {
      fail(error);
    } catch (const std::bad_alloc&) {
      fail(out_of_memory(call));
    }
    throw_record(*failure_);
  }
  Capabilities& can() { return facts_.can; }
  // What a call fails with that finds no memory.
  SystemError out_of_memory(const Call& call) const;

 private:
  void refuse(const Call& call) const {  // without a name every engine finds a way on the processor's memory
    if (call.algorithm.empty() && call.device.kind == Device::Kind::cpu) return;
    if (const std::string why = refuses(call); !why.empty()) throw UsageError(why);
  }

  EngineFacts facts_;
  std::optional<FailureRecord> failure_;
};

}  // namespace lockstep
