// An agent's connection to the agents of the other machines while workers run. Node 0's decides: it hears of
// every failure, tells the others to stop, and when all have finished says how the job ended (the verdict).
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// How one start of the group ended on all machines; the same on every agent.
struct Verdict {
  std::vector<NodeEnd> nodes = {};
  std::vector<WorkerEnd> workers = {};  // by rank; those of a lost node may be missing
  std::optional<int> first_failed = {};
  std::optional<int> first_failed_node = {};
  std::vector<std::string> last_lines = {};  // of the worker that failed first
  int next_master_port = 0;                  // 0: it is over; else the group starts again with this one

  bool again() const { return next_master_port != 0; }
};

// How long the others have, beyond their grace, from being told to stop to the end.
inline constexpr std::chrono::seconds kEndPatience{6};
// Between two signs of life.
inline constexpr std::chrono::milliseconds kBeat{900};

// How it ended on one machine.
struct LocalEnd {
  std::vector<WorkerEnd> workers = {};                      // all of this node
  std::map<int, std::vector<std::string>> last_lines = {};  // of those that may be the cause, by rank
};

// All calls come from the one thread of an attempt, and none waits: messages are short. An agent that is lost
// is no error here but a failure like that of a worker.
class AgentLink {
 public:
  // Another machine wants the workers here to end.
  struct Order {
    int signal = 0;  // 0: something failed, let them settle first; else: tell them so with this signal now
  };

  virtual ~AgentLink() = default;

  virtual int fd() const = 0;  // readable when there is something for poll()
  // Takes what came. To be called at least once a second: it also tells the others that this agent runs, and
  // gives up those that are not heard of, or don't come to an end after they were told to.
  virtual std::optional<Order> poll() = 0;
  virtual void failed(const WorkerEnd&) = 0;            // a worker of this node
  virtual void interrupted(int signal) = 0;             // this agent was told to stop
  virtual void pausing() = 0;                           // this agent is about to be stopped by Ctrl-Z
  virtual void going_on() = 0;                          // and was continued
  virtual void finished(LocalEnd) = 0;                  // no worker runs here any more
  virtual void give_up(const std::string& reason) = 0;  // this agent can't go on
  // Once all machines have finished; taking it makes the link ready for the next start of the group.
  virtual std::optional<Verdict> take_verdict() = 0;
};

}  // namespace lockstep::launcher
