// lockstep run: starts a program as the workers of a job. Flags are torchrun's where it has them.
#include <charconv>
#include <cmath>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::cli {
namespace {

struct RunOptions {
  std::string workers;  // empty: one
  std::string nodes = "1";
  std::string max_restarts = "0";
  std::string grace = "5";
  std::string pin = "cores";
  std::string log_dir;
  std::string redirects;
  std::string tee;
  std::string role = "default";
  std::string master_addr = "127.0.0.1";
  std::string master_port = "0";
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string rdzv_id;
  std::string rdzv_conf;
  std::string node_rank = "0";
  std::string monitor_interval = "0.1";
  std::string start_method = "spawn";
  bool no_pin = false;
  bool json = false;
  bool module = false;
};

UsageError refused(const std::string& flag, const std::string& value, const std::string& accepted) {
  return UsageError(flag + " '" + value + "' is not understood; accepted: " + accepted);
}

template <class Number>
Number number(const std::string& flag, const std::string& text, Number least, Number most,
              const std::string& accepted) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least) || !(value <= most))
    throw refused(flag, text, accepted);
  return value;
}

int workers_of(const std::string& text) {
  const std::string flag = "-n (--nproc-per-node)";
  if (text.empty()) return 1;
  if (text == "auto" || text == "cpu") return available_cores();
  if (text == "gpu") throw refused(flag, text, "a number of workers, auto or cpu; GPUs are not counted yet");
  return number(flag, text, 1, kMostWorkers, "1 to " + std::to_string(kMostWorkers) + ", auto or cpu");
}

// Flags that matter only with several machines: the values that mean "this one" are fine.
void check_one_machine(const RunOptions& options) {
  if (options.nodes != "1" && options.nodes != "1:1")
    throw refused("--nnodes", options.nodes, "1 (or 1:1); a job runs on one machine so far");
  if (options.node_rank != "0")
    throw refused("--node-rank", options.node_rank, "0; a job runs on one machine so far");
  if (options.rdzv_backend != "static" && options.rdzv_backend != "c10d" && options.rdzv_backend != "etcd" &&
      options.rdzv_backend != "etcd-v2")
    throw refused("--rdzv-backend", options.rdzv_backend, "static, c10d, etcd or etcd-v2");
  if (options.start_method != "spawn" && options.start_method != "fork" &&
      options.start_method != "forkserver")
    throw refused("--start-method", options.start_method, "spawn, fork or forkserver");
  number("--monitor-interval", options.monitor_interval, 0.0, 1e6, "seconds, for example 0.1");
}

// host, host:port
void apply_endpoint(const std::string& endpoint, LaunchOptions& launch_options) {
  if (endpoint.empty()) return;
  const std::size_t colon = endpoint.rfind(':');
  if (colon != 0) launch_options.master_addr = endpoint.substr(0, colon);
  if (colon == std::string::npos || colon + 1 == endpoint.size()) return;
  const std::string port = endpoint.substr(colon + 1);
  const char* const accepted = "host or host:port, port 0 to 65535";
  const auto [end, error] =
      std::from_chars(port.data(), port.data() + port.size(), launch_options.master_port);
  if (error != std::errc() || end != port.data() + port.size() || launch_options.master_port < 0 ||
      launch_options.master_port > 65535)
    throw refused("--rdzv-endpoint", endpoint, accepted);
}

LaunchOptions launch_options_of(const RunOptions& options, const std::vector<std::string>& program) {
  if (options.module)
    throw UsageError(
        "-m (--module) starts a Python module, and programs are started as they are; accepted: "
        "lockstep run … -- python3 -m MODULE");
  if (program.empty())
    throw UsageError(
        "no program given; accepted: lockstep run [flags] PROGRAM [arguments], for example lockstep "
        "run -n 4 ./train");
  check_one_machine(options);
  LaunchOptions result;
  result.program = program;
  result.workers = workers_of(options.workers);
  result.max_restarts = number("--max-restarts", options.max_restarts, 0, 1'000'000, "0 to 1000000");
  const double grace = number("--grace", options.grace, 0.0, 1e6, "seconds, for example 5 or 0.5");
  result.grace = std::chrono::milliseconds(std::llround(grace * 1000));
  if (options.pin != "cores" && options.pin != "none") throw refused("--pin", options.pin, "cores or none");
  result.pinning = options.no_pin || options.pin == "none" ? Pinning::none : Pinning::cores;
  result.console = result.workers == 1 ? Console::raw : Console::prefixed;
  result.stdout_fd = options.json ? 2 : 1;
  result.log_dir = options.log_dir;
  if (!options.redirects.empty()) result.redirects = StreamChoice::parse("--redirects", options.redirects);
  if (!options.tee.empty()) result.tee = StreamChoice::parse("--tee", options.tee);
  if (!options.log_dir.empty() && options.redirects.empty() && options.tee.empty())
    result.tee = StreamChoice::all();
  result.role = options.role;
  if (options.rdzv_id.find('/') != std::string::npos)
    throw refused("--rdzv-id", options.rdzv_id, "any text without a slash");
  result.run_id = options.rdzv_id;
  apply_endpoint(options.rdzv_endpoint, result);
  if (options.master_addr != "127.0.0.1") result.master_addr = options.master_addr;
  if (const int port = number("--master-port", options.master_port, 0, 65535, "0 (any free one) to 65535");
      port != 0)
    result.master_port = port;
  return result;
}

void print(const LaunchReport& report) {
  if (const std::string text = describe(report); !text.empty()) std::cerr << "lockstep run: " << text;
}

int start(const RunOptions& options, const std::vector<std::string>& program) {
  LaunchOptions launch_options = launch_options_of(options, program);
  launch_options.on_restart = [](const LaunchReport& report) {
    print(report);
    std::cerr << "lockstep run: starting all workers again, restart " << report.restarts + 1 << " of "
              << report.max_restarts << '\n';
  };
  const LaunchReport report = launch(launch_options);
  print(report);
  if (report.ok() && !report.log_dir.empty()) std::cerr << "lockstep run: logs in " << report.log_dir << '\n';
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
      .add_option("--max-restarts", options.max_restarts,
                  "start the whole group again after a failure, so often")
      ->group(group)
      ->type_name("K");
  command
      .add_option("--grace", options.grace,
                  "seconds from SIGTERM to SIGKILL when workers are stopped; default 5")
      ->group(group)
      ->type_name("S");
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

void add_torchrun_flags(CLI::App& command, RunOptions& options) {
  const char* const group = "Also torchrun's";
  const auto add = [&](const char* name, std::string& value, const char* type, const char* text) {
    command.add_option(name, value, text)->group(group)->type_name(type);
  };
  const auto accept = [&](const char* name, const std::string& text) {
    command.add_flag(name, text)->group(group);
  };
  add("--nnodes", options.nodes, "N", "machines: 1 (or 1:1)");
  add("--node-rank", options.node_rank, "R", "0");
  add("--master-addr", options.master_addr, "HOST", "sets MASTER_ADDR; default 127.0.0.1");
  add("--master-port", options.master_port, "PORT", "sets MASTER_PORT; default: one that is free");
  add("--role", options.role, "NAME", "sets ROLE_NAME; default: default");
  add("--rdzv-id", options.rdzv_id, "ID", "sets TORCHELASTIC_RUN_ID and begins the log folder's name");
  add("--rdzv-endpoint", options.rdzv_endpoint, "HOST:PORT", "sets MASTER_ADDR and MASTER_PORT");
  add("--rdzv-backend", options.rdzv_backend, "NAME", "no effect: one machine needs no rendezvous service");
  add("--rdzv-conf", options.rdzv_conf, "TEXT", "no effect, likewise");
  accept("--standalone", "no effect: a job is always on this machine alone");
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
      cli.app.add_subcommand("run", "Start a program as N workers of one job on this machine");
  command->group(kStart);
  command->formatter(std::make_shared<RunFormatter>());
  command->get_formatter()->column_width(34);
  add_common_flags(*command, *options);
  add_output_flags(*command, *options);
  add_torchrun_flags(*command, *options);
  command->footer(
      "Each worker finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its\n"
      "environment, as under torchrun, and lockstep::init() reads them. Unless OMP_NUM_THREADS is set, it "
      "is\n"
      "each worker's part of the cores. With more than one worker each line is prefixed with [rank N].\n"
      "Flags may be written with hyphens or underscores.\n"
      "\n"
      "When a worker fails the others are stopped, and the report names the failure that came first. "
      "Whatever\n"
      "the workers started ends with the job, even if the launcher is killed.\n"
      "Exit status: 0; 1 a worker failed; 2 bad usage; 128 + signal when the launcher was told to stop.\n"
      "\n"
      "Examples:\n"
      "  lockstep run -n 4 ./train --epochs 3\n"
      "  lockstep run -n auto --max-restarts 3 -- ./train --epochs 3\n"
      "  lockstep run -n 8 --log-dir logs --redirects 3 ./train\n"
      "  lockstep run --standalone --nproc_per_node=2 --tee 0:3 ./train");
  command->callback(
      [&cli, options] { cli.action = [&cli, options] { return start(*options, cli.program); }; });
}

}  // namespace lockstep::cli
