#include "lockstep/launch/launcher.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "launch/attempt.h"
#include "launch/cores.h"
#include "launch/dumps.h"
#include "launch/program.h"
#include "launch/signal_watch.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void check(const LaunchOptions& options) {
  if (options.program.empty()) throw UsageError("no program to start");
  if (options.workers < 1 || options.workers > kMostWorkers)
    throw UsageError(std::to_string(options.workers) + " workers can't be started; accepted: 1 to " +
                     std::to_string(kMostWorkers));
  for (const auto& [choice, what] :
       {std::pair(&options.redirects, "--redirects"), std::pair(&options.tee, "--tee")})
    if (choice->largest_rank() >= options.workers)
      throw UsageError(std::string(what) + " names rank " + std::to_string(choice->largest_rank()) +
                       ", but there are " + std::to_string(options.workers) + " workers; accepted: 0 to " +
                       std::to_string(options.workers - 1));
}

// The folder of one start of the group: its per-rank files and its flight recorders' dumps.
fs::path folder_of(const LaunchOptions& options, const std::string& job, int restart) {
  const std::string attempt = "attempt-" + std::to_string(restart);
  if (options.log_dir.empty())
    return fs::temp_directory_path() / ("lockstep-" + job.substr(0, 12) + "-" + attempt);
  const std::string run = (options.run_id.empty() ? "run" : options.run_id) + "-" + job.substr(0, 8);
  return fs::path(options.log_dir) / run / attempt;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw SystemError("can't make the log folder " + folder.string(), error.value());
}

}  // namespace

LaunchReport launch(const LaunchOptions& options) {
  check(options);
  launcher::AttemptPlan plan;
  plan.program_file = launcher::find_program(options.program.front());
  plan.names.job = launcher::random_name();
  plan.shares = launcher::divide_cores(launcher::usable_cores(), options.workers, launcher::cpu_quota());
  const bool files = options.redirects.any() || options.tee.any();
  const char* const given_dump_dir = std::getenv("LOCKSTEP_DUMP_DIR");
  launcher::SignalWatch signals;
  launcher::Sinks sinks{launcher::Sink(options.stdout_fd), launcher::Sink(2)};

  for (int restart = 0;; ++restart) {
    const fs::path folder = folder_of(options, plan.names.job, restart);
    if (files) {
      make_folder(folder);
      plan.log_folder = folder.string();
    }
    plan.names.restart = restart;
    plan.names.dump_dir = given_dump_dir != nullptr ? given_dump_dir : fs::absolute(folder).string();
    plan.names.master_port = options.master_port != 0 ? options.master_port : launcher::free_port();

    LaunchReport report = launcher::Attempt(options, plan, signals, sinks).run();
    report.job = plan.names.job;
    report.program = options.program.front();
    report.restarts = restart;
    report.max_restarts = options.max_restarts;
    report.log_dir = plan.log_folder;
    if (report.first_failed) launcher::find_dumps(plan.names.dump_dir, report);
    if (!report.first_failed || restart == options.max_restarts) return report;
    if (options.on_restart) options.on_restart(report);
  }
}

}  // namespace lockstep
