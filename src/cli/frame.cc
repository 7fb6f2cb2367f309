#include "cli/frame.h"

#include <algorithm>
#include <iostream>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/knobs.h"
#include "report/printer.h"

namespace lockstep::cli {
namespace {

constexpr int kBadUsage = 2;

bool is_flag(const std::string& word) { return word.size() > 1 && word.front() == '-'; }

// "--nproc_per_node=4" as "--nproc-per-node=4": underscores and hyphens are the same in a flag's name.
std::string with_hyphens(std::string word) {
  if (!word.starts_with("--")) return word;
  std::replace(word.begin(),
               word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size())), '_', '-');
  return word;
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({}))
    if (!command->get_name().empty()) names.push_back(command->get_name());
  return names;
}

// Null when there is none of that name.
const CLI::App* command_of(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({}))
    if (command->get_name() == name) return command;
  return nullptr;
}

// Whether the flag's value is the next word.
bool takes_next_word(const CLI::App& command, const std::string& flag) {
  if (flag.find('=') != std::string::npos) return false;
  if (!flag.starts_with("--") && flag.size() > 2) return false;  // -n4
  const CLI::Option* const option = command.get_option_no_throw(flag);
  return option != nullptr && option->get_items_expected_max() > 0;
}

// Moves the program that `run` starts, and all that belongs to it, from `arguments` to `program`.
void take_program(const CLI::App& command, std::vector<std::string>& arguments,
                  std::vector<std::string>& program) {
  auto at = arguments.begin() + 1;
  while (at != arguments.end() && is_flag(*at) && *at != "--") {
    *at = with_hyphens(*at);
    const bool skip = takes_next_word(command, *at);
    ++at;
    if (skip && at != arguments.end()) ++at;
  }
  const auto end = at;
  if (at != arguments.end() && *at == "--") ++at;
  program.assign(at, arguments.end());
  arguments.erase(end, arguments.end());
}

// A command's name among the arguments of another one, or of itself, where no flag takes it for its value.
// CLI11 would go on with that command.
std::string find_second_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  const std::vector<std::string> names = names_of_commands(app);
  const CLI::App* command = command_of(app, arguments.front());
  for (std::size_t i = 1; command != nullptr && i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (is_flag(word)) {
      if (takes_next_word(*command, word)) ++i;
    } else if (const CLI::App* inner = command_of(*command, word)) {
      command = inner;
    } else if (std::ranges::find(names, word) != names.end()) {
      return word;
    }
  }
  return "";
}

// The subcommand, or subcommand of it, that was being parsed.
const CLI::App& innermost(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : innermost(*parsed.back());
}

std::string path_of(const CLI::App& command) {
  return command.get_parent() == nullptr ? command.get_name()
                                         : path_of(*command.get_parent()) + " " + command.get_name();
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

// What other launchers and trainers call it.
std::string known_elsewhere(const std::string& flag) {
  static constexpr std::pair<std::string_view, const char*> kNames[] = {{"-np", "-n"},
                                                                        {"--np", "-n"},
                                                                        {"--nproc", "-n"},
                                                                        {"--nproc-per-node", "-n"},
                                                                        {"--num-workers", "-n"},
                                                                        {"--batch-size", "--lane-batch"},
                                                                        {"--learning-rate", "--lr"}};
  for (const auto& [theirs, ours] : kNames)
    if (flag == theirs) return ours;
  return "";
}

std::string describe_extra(const CLI::App& command) {
  const std::vector<std::string> extras = command.remaining(true);
  if (extras.empty()) return "an argument was not expected";
  const std::string& word = extras.front();
  if (!is_flag(word)) {
    const std::vector<std::string> names = names_of_commands(command);
    return names.empty() ? "'" + word + "' was not expected here" : not_understood(word, names);
  }
  const std::string flag = word.substr(0, word.find('='));
  const std::vector<std::string> flags = flags_of(command);
  std::string guess = known_elsewhere(flag);
  if (std::ranges::find(flags, guess) == flags.end()) guess = nearest(flag, flags);
  return "unknown flag " + flag +
         (guess.empty() ? "; accepted: those of " + path_of(command) + " --help"
                        : "; did you mean " + guess + "?");
}

// CLI11 says "Could not convert: --steps = many"; say what would do.
std::string describe_conversion(const CLI::App& command, const std::string& message) {
  const std::size_t colon = message.find(": ");
  const std::size_t equals = message.find(" = ");
  if (colon == std::string::npos || equals == std::string::npos) return message;
  const std::string flag = message.substr(colon + 2, equals - colon - 2);
  const CLI::Option* const option = command.get_option_no_throw(flag);
  const std::string type = option != nullptr ? option->get_type_name() : "";
  const char* const accepted = type == "INT"     ? "a whole number"
                               : type == "UINT"  ? "a whole number, 0 or more"
                               : type == "FLOAT" ? "a number"
                                                 : nullptr;
  std::string value = message.substr(equals + 3);
  // Of a flag that was given several times the last one counts, and CLI11 shows all.
  if (option != nullptr && option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeLast)
    value.erase(0, value.rfind(',') + 1);
  return flag + " '" + value + "' is not understood; accepted: " + (accepted != nullptr ? accepted : type);
}

int complain(const std::string& where, std::string message, int status) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::cerr << where << ": " << message << '\n';
  return status;
}

// Parses; the exit status when that already ends the matter.
std::optional<int> parse(Cli& cli, std::vector<std::string> arguments) {
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    cli.app.parse(std::move(arguments));
    return std::nullopt;
  } catch (const CLI::Success& asked) {  // --help, --version
    return cli.app.exit(asked, std::cout, std::cerr);
  } catch (const CLI::ExtrasError&) {
    const CLI::App& command = innermost(cli.app);
    return complain(path_of(command), describe_extra(command), kBadUsage);
  } catch (const CLI::ConversionError& error) {
    const CLI::App& command = innermost(cli.app);
    return complain(path_of(command), describe_conversion(command, error.what()), kBadUsage);
  } catch (const CLI::ArgumentMismatch& error) {
    // "--steps: 1 required INT missing"
    const std::string message = error.what();
    const bool missing = message.ends_with("missing");
    return complain(path_of(innermost(cli.app)),
                    missing ? message.substr(0, message.find(": ")) + " needs a value" : message, kBadUsage);
  } catch (const CLI::ParseError& error) {
    return complain(path_of(innermost(cli.app)), error.what(), kBadUsage);
  }
}

}  // namespace

namespace {

int run_command(Cli& cli, std::vector<std::string> arguments) {
  const std::string program = cli.app.get_name();
  const std::vector<std::string> commands = names_of_commands(cli.app);
  if (arguments.empty()) return complain(program, "no command given; see " + program + " --help", kBadUsage);
  const std::string first = arguments.front();
  if (!is_flag(first) && std::find(commands.begin(), commands.end(), first) == commands.end())
    return complain(program, "command " + not_understood(first, commands), kBadUsage);

  if (first == "run")
    take_program(*cli.app.get_subcommand(first), arguments, cli.program);
  else
    std::transform(arguments.begin(), arguments.end(), arguments.begin(), with_hyphens);

  // CLI11 would read -n with the value p.
  if (std::ranges::find(arguments, "-np") != arguments.end())
    return complain(program + " " + first, "unknown flag -np; did you mean -n?", kBadUsage);
  if (const std::string second = find_second_command(cli.app, arguments); !second.empty())
    return complain(program + " " + first,
                    "'" + second + "' was not expected here; accepted: one command, and its flags",
                    kBadUsage);
  if (const auto status = parse(cli, std::move(arguments))) return *status;
  const std::string where = path_of(innermost(cli.app));
  try {
    // Of `run` they are the workers'.
    if (first != "run") (void)Knobs::from_environment();
    return cli.action ? cli.action()
                      : complain(program, "no command given; see " + program + " --help", kBadUsage);
  } catch (const UsageError& error) {
    return complain(where, error.what(), kBadUsage);
  } catch (const std::exception& error) {
    return complain(where, error.what(), 1);
  }
}

}  // namespace

int run_command_line(Cli& cli, std::vector<std::string> arguments) {
  const std::string program = cli.app.get_name();
  const int status = run_command(cli, std::move(arguments));
  // Whoever reads a file that this was sent to must not take a part of it for all.
  const std::string lost = lost_output();
  return lost.empty() || status != 0 ? status : complain(program, lost, 1);
}

}  // namespace lockstep::cli
