// The frame of subcommands: one file each, one function each.
//
// A subcommand's file defines `void add_<name>(Cli& cli)`, which adds a CLI11 subcommand to `cli.app`,
// keeps its options in a shared_ptr that its callback owns, and in the callback sets `cli.action`:
//
//   void add_hello(Cli& cli) {
//     struct Options { std::string whom = "world"; };
//     auto options = std::make_shared<Options>();
//     CLI::App* command = cli.app.add_subcommand("hello", "Greet somebody");
//     command->group(kMeasure);                                   // where the top-level help lists it
//     command->add_option("--whom", options->whom, "who is greeted (default: world)");
//     command->footer("Examples:\n  lockstep hello --whom you");
//     command->callback([&cli, options] {
//       cli.action = [options] { return say_hello(*options); };   // the exit status: 0 or 1
//     });
//   }
//
// It is then declared below and listed in commands.cc. The frame does the rest: flags may be written with
// hyphens or underscores; a bad flag, and any UsageError that the action throws, becomes one line on
// standard error and exit status 2; any other Error becomes one line and exit status 1.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/suggest.h"

namespace lockstep::cli {

struct Cli {
  CLI::App& app;
  // What the command line asks for; gives the exit status. Set by the chosen subcommand's callback.
  std::function<int()> action;
  // For `run`: the program to start and its arguments, exactly as written. The frame takes everything
  // from the first word that is no flag (or after `--`) out of CLI11's sight.
  std::vector<std::string> program;
};

// Groups of the top-level help.
inline constexpr const char* kStart = "Start workers";
inline constexpr const char* kTrain = "Train";
inline constexpr const char* kMeasure = "Measure and tune";

void add_commands(Cli& cli);  // all that the program has

void add_run(Cli& cli);
void add_secret(Cli& cli);
void add_train(Cli& cli);
void add_infer(Cli& cli);
void add_sweep(Cli& cli);
void add_checkpoint(Cli& cli);
void add_plan(Cli& cli);
void add_bench(Cli& cli);
void add_tune(Cli& cli);
// `lockstep bench step`: a subcommand of `bench`.
void add_step_bench(Cli& cli, CLI::App& bench);
// `lockstep bench compress`: another one.
void add_compress_bench(Cli& cli, CLI::App& bench);
// `lockstep sweep batch`: a subcommand of `sweep`.
void add_batch_sweep(Cli& cli, CLI::App& sweep);
// `lockstep sweep compress`: another one.
void add_compress_sweep(Cli& cli, CLI::App& sweep);

}  // namespace lockstep::cli
