// What the agents of a job agree on before the first worker starts. On one machine there is nobody to ask.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

struct Job {
  std::string name = {};            // LOCKSTEP_JOB
  int node = 0;                     // this agent's
  std::vector<NodeEnd> nodes = {};  // by node
  std::string master_addr = {};
  int master_port = 0;  // of the next start of the group
  int max_restarts = 0;
  std::chrono::milliseconds grace{};  // the longest of all nodes
  std::string worker_secret = {};     // LOCKSTEP_SECRET
  std::string threads = {};           // OMP_NUM_THREADS

  const NodeEnd& own() const { return nodes[static_cast<std::size_t>(node)]; }
  bool several() const { return nodes.size() > 1; }
  int world_size() const { return nodes.back().first_rank + nodes.back().workers; }
  // The start of a LOCKSTEP_AGENT entry that only what this agent's workers started carries. Agents on one
  // machine (in tests, or containers that share process numbers) have the same job, so the job's name alone
  // would not do.
  std::string mark() const { return "LOCKSTEP_AGENT=" + agent(); }
  std::string agent() const { return std::to_string(node) + "." + name; }
};

// A job of this machine alone, with a random name and secret.
Job job_on_one_machine(const LaunchOptions& options);

// OMP_NUM_THREADS as this agent's user wants it, by an option or in the environment; empty when not said.
std::string wanted_threads(const LaunchOptions& options);
// The same for a job that this agent decides on.
std::string threads_of_job(const LaunchOptions& options);

// Gives every node its first rank, in the order of nodes.
void number_ranks(std::vector<NodeEnd>& nodes);

}  // namespace lockstep::launcher
