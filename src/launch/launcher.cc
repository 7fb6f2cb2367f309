#include "lockstep/launch/launcher.h"

#include <algorithm>
#include <filesystem>

#include "base/environment.h"
#include "launch/attempt.h"
#include "launch/cores.h"
#include "launch/dumps.h"
#include "launch/gathering.h"
#include "launch/program.h"
#include "launch/signal_watch.h"
#include "lockstep/base/error.h"
#include "lockstep/base/folder.h"
#include "lockstep/base/standard_fds.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void check_options(const LaunchOptions& options) {
  if (options.program.empty()) throw UsageError("no program to start");
  if (options.workers < 1 || options.workers > kMostWorkers)
    throw UsageError(std::to_string(options.workers) + " workers can't be started; accepted: 1 to " +
                     std::to_string(kMostWorkers));
  for (const auto& [choice, what] :
       {std::pair(&options.redirects, "--redirects"), std::pair(&options.tee, "--tee")})
    if (choice->largest_rank() >= options.workers)
      throw UsageError(std::string(what) + " names rank " + std::to_string(choice->largest_rank()) +
                       ", and the number of workers is " + std::to_string(options.workers) +
                       "; accepted: 0 to " + std::to_string(options.workers - 1));
  if (options.threads < 0 || options.threads > kMostThreads)
    throw UsageError(std::to_string(options.threads) + " threads a worker can't be; accepted: 1 to " +
                     std::to_string(kMostThreads) + ", or 0 for what OMP_NUM_THREADS says");
  const Machines& machines = options.machines;
  if (machines.nodes < 1 || machines.nodes > kMostNodes)
    throw UsageError("--nnodes " + std::to_string(machines.nodes) + " can't be; accepted: 1 to " +
                     std::to_string(kMostNodes));
  if (machines.node && (*machines.node < 0 || *machines.node >= machines.nodes))
    throw UsageError("--node-rank " + std::to_string(*machines.node) + " with --nnodes " +
                     std::to_string(machines.nodes) + " can't be; accepted: 0 to " +
                     std::to_string(machines.nodes - 1));
}

// The folder of one start of the group: its per-rank files and its flight recorders' dumps.
fs::path folder_of(const LaunchOptions& options, const std::string& job, int restart) {
  const std::string attempt = "attempt-" + std::to_string(restart);
  if (options.log_dir.empty()) return temporary_folder() + "/lockstep-" + job.substr(0, 12) + "-" + attempt;
  const std::string run = (options.run_id.empty() ? "run" : options.run_id) + "-" + job.substr(0, 8);
  return fs::path(options.log_dir) / run / attempt;
}

// After a job that did well in the end nobody looks for why it did not at first.
void remove_folders(const std::vector<fs::path>& folders) {
  std::error_code error;
  for (const fs::path& folder : folders) fs::remove_all(folder, error);
}

// Starts the group until it does well or has failed often enough.
LaunchReport run(const LaunchOptions& options, launcher::AttemptPlan& plan, launcher::AgentLink* link) {
  launcher::Job& job = plan.start.job;
  const bool files = options.redirects.any() || options.tee.any();
  const auto given_dump_dir = read_variable("LOCKSTEP_DUMP_DIR");
  launcher::SignalWatch signals;
  launcher::Sinks sinks{launcher::Sink(options.stdout_fd), launcher::Sink(2)};

  std::vector<fs::path> unasked;  // folders for dumps, one a start, that the user did not name
  for (int restart = 0;; ++restart) {
    const fs::path folder = folder_of(options, job.name, restart);
    if (files) {
      make_folder(folder);
      plan.log_folder = folder.string();
    }
    plan.start.restart = restart;
    plan.start.dump_dir = given_dump_dir.value_or(fs::absolute(folder).string());

    LaunchReport report;
    int next_master_port = 0;
    {
      launcher::Attempt attempt(options, plan, signals, sinks, link);
      report = attempt.run();
      if (attempt.verdict())
        next_master_port = attempt.verdict()->next_master_port;
      else if (report.first_failed && restart < job.max_restarts)
        next_master_port = options.master_port != 0 ? options.master_port : launcher::free_port();
    }
    report.job = job.name;
    report.program = options.program.front();
    report.node = job.node;
    report.restarts = restart;
    report.max_restarts = job.max_restarts;
    report.log_dir = plan.log_folder;
    // Who ends by itself when it is told to has nothing to explain, and its dumps are gone.
    const bool told = std::any_of(report.workers.begin(), report.workers.end(),
                                  [](const WorkerEnd& end) { return end.stopped && end.signal != 0; });
    if (!report.ok() && (report.interrupted_by == 0 || told))
      launcher::find_dumps(plan.start.dump_dir, launcher::name_for_workers(plan.start), report);
    if (!files && options.log_dir.empty() && !given_dump_dir) unasked.push_back(folder);
    if (next_master_port == 0 || report.interrupted_by != 0) {
      if (report.ok()) remove_folders(unasked);
      return report;
    }
    job.master_port = next_master_port;
    if (options.on_restart) options.on_restart(report);
  }
}

}  // namespace

LaunchReport launch(const LaunchOptions& options) {
  check_options(options);
  open_standard_descriptors();
  launcher::AttemptPlan plan;
  plan.program_file = launcher::find_program(options.program.front());
  plan.cpus.resize(static_cast<std::size_t>(options.workers));
  if (options.pinning == Pinning::cores)
    plan.cpus = launcher::divide_cores(launcher::usable_cores(), options.workers);
  // Signals still do what they always do while agents wait for each other: no worker runs yet.
  launcher::Gathered gathered;
  if (options.machines.nodes > 1)
    gathered = launcher::meet(options);
  else
    gathered.job = launcher::job_on_one_machine(options);
  plan.start.job = gathered.job;
  try {
    return run(options, plan, gathered.link.get());
  } catch (const std::exception& error) {
    if (gathered.link) gathered.link->give_up(error.what());
    throw;
  }
}

}  // namespace lockstep
