// What the command line of `lockstep run` says, and what it means.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/launcher.h"

namespace lockstep::cli {

// The flags as written.
struct RunOptions {
  std::string workers;  // empty: one
  std::string nodes;    // empty: one, unless SLURM says otherwise
  std::string max_restarts = "0";
  std::string grace;  // empty: as the launcher has it
  std::optional<std::string> threads;
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
  std::optional<std::string> secret_file;
  std::string monitor_interval = "0.1";
  std::string start_method = "spawn";
  bool plaintext = false;
  bool standalone = false;
  bool no_pin = false;
  bool json = false;
  bool module = false;
};

// Throws UsageError that names the flag, its value and what is accepted.
LaunchOptions launch_options_of(const RunOptions& options, const std::vector<std::string>& program);

}  // namespace lockstep::cli
