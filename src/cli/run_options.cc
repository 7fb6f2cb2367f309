#include "cli/run_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string_view>

#include "launch/slurm.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

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

// torchrun's other keys, which say nothing here: node 0's agent is the rendezvous.
constexpr std::string_view kConfWithoutEffect[] = {"is_host",
                                                   "rank",
                                                   "store_type",
                                                   "use_libuv",
                                                   "read_timeout",
                                                   "last_call_timeout",
                                                   "close_timeout",
                                                   "heartbeat_timeout",
                                                   "keep_alive_interval",
                                                   "keep_alive_max_attempt",
                                                   "protocol",
                                                   "etcd_prefix",
                                                   "cert",
                                                   "key",
                                                   "cacert",
                                                   "ssl_cert",
                                                   "ssl_cert_key",
                                                   "ca_cert"};

// How long agents wait for each other: join_timeout=S or timeout=S in torchrun's list of key=value.
void apply_conf(const std::string& conf, Machines& machines) {
  std::string accepted =
      "key=value,…; join_timeout=SECONDS (or timeout) is how long machines wait for each other; torchrun's, "
      "without effect:";
  for (const std::string_view key : kConfWithoutEffect) accepted.append(1, ' ').append(key);
  bool exact = false;  // join_timeout was given, which says it better than timeout
  for (std::string_view rest = conf; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string item(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0) throw refused("--rdzv-conf", conf, accepted);
    const std::string key = item.substr(0, equals);
    if (std::ranges::find(kConfWithoutEffect, key) != std::end(kConfWithoutEffect)) continue;
    if (key != "join_timeout" && key != "timeout") throw refused("--rdzv-conf", item, accepted);
    if (key == "timeout" && exact) continue;
    exact = key == "join_timeout";
    const double seconds =
        number("--rdzv-conf " + key, item.substr(equals + 1), 0.001, 1e6, "seconds, for example 600");
    machines.patience = std::chrono::milliseconds(std::llround(seconds * 1000));
  }
}

// Which machines, by flags or by SLURM.
Machines machines_of(const RunOptions& options) {
  Machines machines;
  if (options.secret_file && options.secret_file->empty())
    throw refused("--secret-file", "", "a file made by `lockstep secret --out job.key`");
  machines.secret_file = options.secret_file.value_or("");
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

}  // namespace

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
  if (!options.grace.empty()) {
    const double grace = number("--grace", options.grace, 0.0, 1e6, "seconds, for example 5 or 0.5");
    result.grace = result.grace_after_failure = std::chrono::milliseconds(std::llround(grace * 1000));
  }
  if (options.threads)
    result.threads =
        number("--threads", *options.threads, 1, kMostThreads, "1 to " + std::to_string(kMostThreads));
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

}  // namespace lockstep::cli
