// Which of several failures was the cause.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// Something that ends a job.
struct Failure {
  enum class Kind {
    worker,       // failed
    lost,         // the agent of a node
    interrupted,  // the agent of a node was told to stop
  };
  Kind kind = Kind::worker;
  int node = 0;
  double seconds = 0;  // when it was seen here, on this machine's clock; other machines' clocks differ
  WorkerEnd end = {};  // the worker's
};

// Could it be the cause? It failed, and not because it was told to stop: one that was told so while it was
// dying (a large core takes seconds) ends as it would have.
bool may_be_cause(const WorkerEnd& end);

// `failures` in the order in which they were seen. What the workers themselves gave as the reason comes
// first: one whose own error is the end of another that failed is a victim, and never the cause unless all
// are; where some error blames a worker that blames nobody, it is one of those. So the order of deaths does
// not matter where workers have said why.
//
// Of what is left, survivors of a dead peer fail soon after it, and may even be seen before it: a dying
// process lets go of locks and sockets before it counts as ended, and a big one takes long to die. So a
// failure that a program doesn't bring about itself (a signal such as SIGSEGV or SIGKILL, a lost node, an
// interrupt) comes before an exit code, SIGABRT (what an uncaught error ends in), SIGPIPE and SIGTERM when it
// is seen soon after: within 100 ms on one node; 250 ms across nodes, whose messages take time; a second for
// an interrupt; ten for a lost node, since a machine that vanished is only noticed by its silence. Otherwise
// the first seen is the cause. Workers that were stopped never are, unless they are blamed and ended in
// another way than by what stopped them.
std::optional<Failure> first_failure(const std::vector<Failure>& failures);

// The same for the workers of one machine, in the order in which they ended: the rank.
std::optional<int> first_failure(const std::vector<WorkerEnd>& ends);

}  // namespace lockstep::launcher
