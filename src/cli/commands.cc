// The subcommands, in the order of the help.
#include "cli/command.h"

namespace lockstep::cli {

void add_commands(Cli& cli) {
  add_train(cli);
  add_infer(cli);
  add_sweep(cli);
  add_checkpoint(cli);
  add_run(cli);
  add_secret(cli);
  add_plan(cli);
  add_bench(cli);
  add_tune(cli);
}

}  // namespace lockstep::cli
