// The program `lockstep`. Its subcommands are listed in commands.cc.
#include <csignal>

#include "cli/command.h"
#include "cli/frame.h"
#include "lockstep/base/standard_fds.h"

#ifndef LOCKSTEP_VERSION
#error "the build gives LOCKSTEP_VERSION"
#endif

int main(int argc, char** argv) {
  lockstep::open_standard_descriptors();
  std::signal(SIGCHLD,
              SIG_DFL);  // ignored by some who start programs; then nobody would learn how a child ended
  CLI::App app("Lockstep: data-parallel training for C++, and the tools around it", "lockstep");
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.get_formatter()->column_width(34);
  app.footer(
      "Examples:\n"
      "  lockstep train --model resnet18 --data shapes -n 2 --epochs 3 --out runs/first\n"
      "  lockstep run -n 4 ./train --epochs 3       four workers on this machine\n"
      "  lockstep <command> --help                  flags and examples of a command\n"
      "\n"
      "Exit status: 0, 1 when the run failed, 2 for bad usage (one line says what is accepted), 128 + signal "
      "when it\n"
      "was told to stop.");

  lockstep::cli::Cli cli{.app = app, .action = {}, .program = {}};
  lockstep::cli::add_commands(cli);
  return lockstep::cli::run_command_line(cli, {argv + 1, argv + argc});
}
