#include "launch/job.h"

#include "base/environment.h"
#include "base/host_name.h"
#include "launch/worker_environment.h"
#include "net/secret.h"

namespace lockstep::launcher {

Job job_on_one_machine(const LaunchOptions& options) {
  Job job;
  job.name = random_name();
  NodeEnd here;
  here.host = host_name();
  here.workers = options.workers;
  job.nodes = {here};
  job.master_addr = options.master_addr.empty() ? "127.0.0.1" : options.master_addr;
  job.master_port = options.master_port != 0 ? options.master_port : free_port();
  job.max_restarts = options.max_restarts;
  job.worker_secret = net::Secret::make().hex();
  job.threads = threads_of_job(options);
  return job;
}

std::string wanted_threads(const LaunchOptions& options) {
  if (options.threads > 0) return std::to_string(options.threads);
  return read_variable("OMP_NUM_THREADS").value_or("");
}

std::string threads_of_job(const LaunchOptions& options) {
  // Not a share of the cores: a program's arithmetic must not change with the number of workers.
  const std::string wanted = wanted_threads(options);
  return wanted.empty() ? "1" : wanted;
}

void number_ranks(std::vector<NodeEnd>& nodes) {
  int next = 0;
  for (NodeEnd& node : nodes) {
    node.first_rank = next;
    next += node.workers;
  }
}

}  // namespace lockstep::launcher
