// lockstep run: starts a program as the workers of a job. Flags are torchrun's where it has them.
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/run_options.h"
#include "lockstep/launch/launcher.h"
#include "report/printer.h"

namespace lockstep::cli {
namespace {

std::string text_of(const LaunchReport& report) {
  const std::string text = describe(report);
  return text.empty() ? "" : "lockstep run: " + text;
}

int start(const RunOptions& options, const std::vector<std::string>& program) {
  LaunchOptions launch_options = launch_options_of(options, program);
  // While the job runs signals are held back for the launcher, which reads none while it waits for a reader.
  Printer printer;
  printer.give_up_when(stop_is_pending);
  launch_options.on_restart = [&printer](const LaunchReport& report) {
    printer.print(stderr, text_of(report) + "lockstep run: starting all workers again, restart " +
                              std::to_string(report.restarts + 1) + " of " +
                              std::to_string(report.max_restarts) + "\n");
  };
  launch_options.on_notice = [&printer](const std::string& text) {
    // Nobody waits for a reader with a notice: one of them says that the job was told to stop.
    if (takes_text(2)) printer.print(stderr, "lockstep run: " + text + "\n");
  };
  const LaunchReport report = launch(launch_options);
  printer.give_up_when([&report] { return report.interrupted_by != 0; });
  printer.print(stderr, text_of(report));
  if (report.ok() && !report.log_dir.empty()) std::cerr << "lockstep run: logs in " << report.log_dir << '\n';
  if (report.interrupted_by != 0 && !takes_text(1)) return report.exit_status();
  if (options.json) std::cout << to_json(report) << std::endl;
  return report.exit_status();
}

// The program is no CLI11 positional: everything after it is its own.
class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    (void)app;
    return "Usage: " + name + " [flags] [--] PROGRAM [arguments]\n";
  }
};

void add_common_flags(CLI::App& command, RunOptions& options) {
  const char* const group = "Workers";
  command
      .add_option("-n,--nproc-per-node", options.workers,
                  "workers: a number, or auto (one a core); default 1")
      ->group(group)
      ->type_name("N");
  command
      .add_option(
          "--max-restarts", options.max_restarts,
          "start the whole group again after a failure, so often; on several machines node 0's counts")
      ->group(group)
      ->type_name("K");
  command
      .add_option(
          "--grace", options.grace,
          "seconds from being told to stop to SIGKILL; default 30, and 5 after another worker's failure")
      ->group(group)
      ->type_name("S");
  command
      .add_option_function<std::string>(
          "--threads", [&options](const std::string& count) { options.threads = count; },
          "threads of each worker: sets OMP_NUM_THREADS; default: as it is set here, else 1; on several "
          "machines node 0's counts")
      ->group(group)
      ->type_name("T");
  command
      .add_option(
          "--pin", options.pin,
          "cores (default): each worker on cores of its own, if there are enough; none: the kernel decides")
      ->group(group)
      ->type_name("HOW");
  command.add_flag("--no-pin", options.no_pin, "same as --pin none")->group(group);
}

void add_output_flags(CLI::App& command, RunOptions& options) {
  const char* const group = "Output";
  command
      .add_option(
          "--log-dir", options.log_dir,
          "folder for per-rank files and flight recorders; each run makes a new one in it. Alone it implies "
          "--tee 3")
      ->group(group)
      ->type_name("DIR");
  command
      .add_option("-r,--redirects", options.redirects,
                  "streams that go to files instead: 0 none, 1 stdout, 2 stderr, 3 both, or by rank: 0:1,1:2")
      ->group(group)
      ->type_name("WHICH");
  command.add_option("-t,--tee", options.tee, "streams that go to files as well, written the same way")
      ->group(group)
      ->type_name("WHICH");
  command
      .add_flag("--json", options.json,
                "end with one JSON object on stdout; the workers' stdout then goes to stderr")
      ->group(group);
}

void add_machine_flags(CLI::App& command, RunOptions& options) {
  const char* const group = "Several machines (run once on each)";
  const auto add = [&](const char* name, std::string& value, const char* type, const char* text) {
    command.add_option(name, value, text)->group(group)->type_name(type);
  };
  add("--nnodes", options.nodes, "M",
      "machines; default 1. MIN:MAX is accepted, and the job starts with MAX");
  add("--node-rank", options.node_rank, "R",
      "this machine's number, 0 to M-1; default: 0 where the endpoint is, the others as they come");
  add("--rdzv-endpoint", options.rdzv_endpoint, "HOST:PORT",
      "an address of machine 0 and a free port there; the same everywhere");
  command
      .add_option_function<std::string>(
          "--secret-file", [&options](const std::string& file) { options.secret_file = file; },
          "the job's secret, made by lockstep secret --out FILE, the same everywhere; default: "
          "LOCKSTEP_SECRET or LOCKSTEP_SECRET_FILE")
      ->group(group)
      ->type_name("FILE");
  command
      .add_flag("--plaintext", options.plaintext,
                "no TLS between machines, for a fabric that you trust; the secret is still checked")
      ->group(group);
  add("--rdzv-conf", options.rdzv_conf, "TEXT",
      "join_timeout=S: how long machines wait for each other; default 600. Of torchrun's other keys none has "
      "an effect");
}

void add_torchrun_flags(CLI::App& command, RunOptions& options) {
  const char* const group = "Also torchrun's";
  const auto add = [&](const char* name, std::string& value, const char* type, const char* text) {
    command.add_option(name, value, text)->group(group)->type_name(type);
  };
  const auto accept = [&](const char* name, const std::string& text) {
    command.add_flag(name, text)->group(group);
  };
  add("--master-addr", options.master_addr, "HOST",
      "sets MASTER_ADDR; default 127.0.0.1, or the endpoint's host. Instead of --rdzv-endpoint: node 0's "
      "address");
  add("--master-port", options.master_port, "PORT",
      "sets MASTER_PORT, or is the port of that address; default: one that is free");
  add("--role", options.role, "NAME", "sets ROLE_NAME; default: default");
  add("--rdzv-id", options.rdzv_id, "ID", "sets TORCHELASTIC_RUN_ID and begins the log folder's name");
  add("--rdzv-backend", options.rdzv_backend, "NAME", "no effect: node 0's agent is the rendezvous");
  command.add_flag("--standalone", options.standalone, "this machine alone, whatever SLURM says")
      ->group(group);
  add("--monitor-interval", options.monitor_interval, "S",
      "no effect: failures are seen at once, not polled for");
  add("--start-method", options.start_method, "HOW", "no effect: workers are programs, not Python processes");
  accept("--no-python", "no effect: the program is always started as it is");
  command.add_flag("-m,--module", options.module, "refused: write python3 -m MODULE instead")->group(group);
}

}  // namespace

void add_run(Cli& cli) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* const command =
      cli.app.add_subcommand("run", "Start a program as the workers of one job, on this machine or several");
  command->group(kStart);
  command->formatter(std::make_shared<RunFormatter>());
  command->get_formatter()->column_width(34);
  add_common_flags(*command, *options);
  add_output_flags(*command, *options);
  add_machine_flags(*command, *options);
  add_torchrun_flags(*command, *options);
  command->footer(
      "Each worker finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its\n"
      "environment, as under torchrun, and lockstep::init() reads them. OMP_NUM_THREADS is 1 unless\n"
      "it is set or --threads is given: the same in all workers and for every -n, since sums of several "
      "threads\n"
      "have other bits. With more than one worker each line is prefixed with [rank N].\n"
      "Flags may be written with hyphens or underscores.\n"
      "\n"
      "When a worker fails the others are stopped, and the report names the failure that came first. "
      "Whatever\n"
      "the workers started ends with the job. If the launcher is killed (SIGKILL) that is so for all but "
      "processes\n"
      "that have both left their worker's process group and cleared their environment.\n"
      "\n"
      "SIGINT, SIGTERM, SIGHUP and SIGQUIT end the job: workers have --grace seconds from the first; repeats "
      "within\n"
      "3 s are one, a later one kills at once. The report says who had to be killed.\n"
      "\n"
      "On several machines run it once on each, at about the same time, with one --rdzv-endpoint and one\n"
      "secret. The workers may differ in number; ranks follow the machines' numbers. A failure anywhere "
      "ends\n"
      "the job everywhere, and every machine reports the same one first. srun, one task a node, needs "
      "neither\n"
      "--nnodes nor --node-rank nor --rdzv-endpoint.\n"
      "\n"
      "Exit status: 0; 1 a worker failed; 2 bad usage; 128 + signal when the launcher was told to stop.\n"
      "\n"
      "Examples:\n"
      "  lockstep run -n 4 ./train --epochs 3\n"
      "  lockstep run -n auto --max-restarts 3 -- ./train --epochs 3\n"
      "  lockstep run -n 8 --log-dir logs --redirects 3 ./train\n"
      "  lockstep run --standalone --nproc_per_node=2 --tee 0:3 ./train\n"
      "Two machines, node0 (10.0.0.1) and another:\n"
      "  lockstep secret --out job.key        once; then copy job.key to both\n"
      "  lockstep run --nnodes 2 --node-rank 0 --rdzv-endpoint 10.0.0.1:29400 --secret-file job.key -n 4 "
      "./train\n"
      "  lockstep run --nnodes 2 --node-rank 1 --rdzv-endpoint 10.0.0.1:29400 --secret-file job.key -n 4 "
      "./train\n"
      "SLURM, two nodes:\n"
      "  srun -N 2 --ntasks-per-node 1 lockstep run --secret-file job.key -n 4 ./train");
  command->callback(
      [&cli, options] { cli.action = [&cli, options] { return start(*options, cli.program); }; });
}

}  // namespace lockstep::cli
