// The subcommands of a program that only starts jobs: what the tests under a sanitizer need, built in half
// the time.
#include "cli/command.h"

namespace lockstep::cli {

void add_commands(Cli& cli) {
  add_run(cli);
  add_secret(cli);
}

}  // namespace lockstep::cli
