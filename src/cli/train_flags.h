// The options of a training run as flags, for every subcommand that takes them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "recipe/train_options.h"

namespace lockstep::cli {

struct TrainFlags {
  TrainOptions options;
  std::string config;
  bool json = false;
  CLI::App* command = nullptr;
  Given on_line = {};  // what was written on the command line; gather() fills it in

  // What the command line and the config file say, together: options are filled in from the file.
  Given gather();
};

// All of them, or only those named, and --json; all come with --config.
void add_train_flags(CLI::App& command, TrainFlags& flags, const Given& only = {});

}  // namespace lockstep::cli
