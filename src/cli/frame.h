// Between the command line and the subcommands: what main.cc does before and after CLI11.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace lockstep::cli {

// Parses `arguments` (without the program's own name) and runs what they ask for; gives the exit status:
// 0, 1 (the run failed), 2 (bad usage), or what the subcommand's action says.
int run_command_line(Cli& cli, std::vector<std::string> arguments);

}  // namespace lockstep::cli
