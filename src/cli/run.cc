// lockstep run: starts a program as the workers of a job. Flags are torchrun's where it has them.
#include <charconv>
#include <cmath>
#include <iostream>
#include <memory>
#include <string_view>

#include "cli/command.h"
#include "launch/slurm.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::cli {
namespace {

struct RunOptions {
  std::string workers;  // empty: one
  std::string nodes;    // empty: one, unless SLURM says otherwise
  std::string max_restarts = "0";
  std::string grace = "5";
  std::string pin = "cores";
  std::string log_dir;
  std::string redirects;
  std::string tee;
  std::string role = "default";
  std::string master_addr;  // empty: as the launcher chooses
  std::string master_port = "0";
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string rdzv_id;
  std::string rdzv_conf;
  std::string node_rank;  // empty: not said
  std::string secret_file;
  std::string monitor_interval = "0.1";
  std::string start_method = "spawn";
  bool plaintext = false;
  bool standalone = false;
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

// Flags of torchrun's that change nothing here still have to be right.
void check_without_effect(const RunOptions& options) {
  if (options.rdzv_backend != "static" && options.rdzv_backend != "c10d" && options.rdzv_backend != "etcd" &&
      options.rdzv_backend != "etcd-v2")
    throw refused("--rdzv-backend", options.rdzv_backend, "static, c10d, etcd or etcd-v2");
  if (options.start_method != "spawn" && options.start_method != "fork" &&
      options.start_method != "forkserver")
    throw refused("--start-method", options.start_method, "spawn, fork or forkserver");
  number("--monitor-interval", options.monitor_interval, 0.0, 1e6, "seconds, for example 0.1");
}

// N, or MIN:MAX.
void apply_nodes(const std::string& text, Machines& machines) {
  const std::string accepted =
      "a number of machines, 1 to " + std::to_string(kMostNodes) + ", or MIN:MAX, for example 2 or 2:4";
  const auto count = [&](const std::string& part) {
    int value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < 1 || value > kMostNodes)
      throw refused("--nnodes", text, accepted);
    return value;
  };
  const std::size_t colon = text.find(':');
  machines.least_nodes = count(text.substr(0, colon));
  machines.nodes = colon == std::string::npos ? machines.least_nodes : count(text.substr(colon + 1));
  if (machines.least_nodes > machines.nodes) throw refused("--nnodes", text, accepted);
}

// How long agents wait for each other: join_timeout=S or timeout=S in torchrun's list of key=value.
void apply_conf(const std::string& conf, Machines& machines) {
  const std::string accepted = "key=value,…; join_timeout=SECONDS is how long machines wait for each other";
  bool exact = false;  // join_timeout was given, which says it better than timeout
  for (std::string_view rest = conf; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string item(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0) throw refused("--rdzv-conf", conf, accepted);
    const std::string key = item.substr(0, equals);
    if (key != "join_timeout" && (key != "timeout" || exact)) continue;
    exact = key == "join_timeout";
    const double seconds =
        number("--rdzv-conf " + key, item.substr(equals + 1), 0.001, 1e6, "seconds, for example 600");
    machines.patience = std::chrono::milliseconds(std::llround(seconds * 1000));
  }
}

// Which machines, by flags or by SLURM.
Machines machines_of(const RunOptions& options) {
  Machines machines;
  machines.secret_file = options.secret_file;
  apply_conf(options.rdzv_conf, machines);
  const bool unsaid = options.nodes.empty() && options.node_rank.empty() && options.rdzv_endpoint.empty();
  if (const auto slurm = unsaid && !options.standalone ? launcher::slurm_nodes() : std::nullopt) {
    machines.nodes = machines.least_nodes = slurm->nodes;
    machines.node = slurm->node;
    machines.endpoint = slurm->endpoint;
    return machines;
  }
  apply_nodes(options.nodes.empty() ? "1" : options.nodes, machines);
  if (!options.node_rank.empty())
    machines.node = number("--node-rank", options.node_rank, 0, machines.nodes - 1,
                           machines.nodes == 1 ? "0, since --nnodes is 1"
                                               : "0 to " + std::to_string(machines.nodes - 1) +
                                                     ", one less than --nnodes at most");
  if (machines.nodes == 1) return machines;
  if (options.standalone)
    throw UsageError("--standalone is this machine alone, and --nnodes " + options.nodes +
                     " is several; accepted: one of the two");
  // torchrun's static rendezvous names node 0 by --master-addr and --master-port.
  machines.endpoint = options.rdzv_endpoint;
  if (machines.endpoint.empty() && !options.master_addr.empty())
    machines.endpoint = options.master_addr + (options.master_port == "0" ? "" : ":" + options.master_port);
  return machines;
}

// On one machine the endpoint only sets variables: host, host:port.
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
  check_without_effect(options);
  LaunchOptions result;
  result.machines = machines_of(options);
  result.plaintext = options.plaintext;
  result.program = program;
  result.workers = workers_of(options.workers);
  result.max_restarts = number("--max-restarts", options.max_restarts, 0, 1'000'000, "0 to 1000000");
  const double grace = number("--grace", options.grace, 0.0, 1e6, "seconds, for example 5 or 0.5");
  result.grace = std::chrono::milliseconds(std::llround(grace * 1000));
  if (options.pin != "cores" && options.pin != "none") throw refused("--pin", options.pin, "cores or none");
  result.pinning = options.no_pin || options.pin == "none" ? Pinning::none : Pinning::cores;
  result.console = result.workers == 1 && result.machines.nodes == 1 ? Console::raw : Console::prefixed;
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
  const int port = number("--master-port", options.master_port, 0, 65535, "0 (any free one) to 65535");
  if (result.machines.nodes > 1 && options.rdzv_endpoint.empty()) return result;  // they are the endpoint
  if (result.machines.nodes == 1) apply_endpoint(options.rdzv_endpoint, result);
  if (!options.master_addr.empty()) result.master_addr = options.master_addr;
  if (port != 0) result.master_port = port;
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
  launch_options.on_notice = [](const std::string& text) {
    std::cerr << "lockstep run: " << text << std::endl;
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
  add("--secret-file", options.secret_file, "FILE",
      "the job's secret, made by lockstep secret, the same everywhere; default: LOCKSTEP_SECRET or "
      "LOCKSTEP_SECRET_FILE");
  command
      .add_flag("--plaintext", options.plaintext,
                "no TLS between machines, for a fabric that you trust; the secret is still checked")
      ->group(group);
  add("--rdzv-conf", options.rdzv_conf, "TEXT",
      "join_timeout=S: how long machines wait for each other; default 600");
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
      "environment, as under torchrun, and lockstep::init() reads them. Unless OMP_NUM_THREADS is set, it "
      "is\n"
      "each worker's part of the cores. With more than one worker each line is prefixed with [rank N].\n"
      "Flags may be written with hyphens or underscores.\n"
      "\n"
      "When a worker fails the others are stopped, and the report names the failure that came first. "
      "Whatever\n"
      "the workers started ends with the job, even if the launcher is killed.\n"
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
