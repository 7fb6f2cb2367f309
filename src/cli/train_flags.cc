#include "cli/train_flags.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "recipe/config_file.h"

namespace lockstep::cli {
namespace {

UsageError missing_value(const std::string& flag, const std::string& next) {
  return UsageError(
      fmt::format("{} has no value: '{}' follows it; accepted: a name, and one that begins with a hyphen as "
                  "./{}",
                  flag, next, next));
}

// A flag without its value takes the flag behind it for one.
void expect_names(const TrainOptions& options, const Given& given) {
  visit_options(options, [&](const OptionInfo& info, const auto& field) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, std::string>)
      if (given.contains(info.name) && field.size() > 1 && field.starts_with('-'))
        throw missing_value(flag_of(info.name), field);
  });
}

// Of two ways to say the learning rate, one here and one in a file, the one here wins.
void take_rate_of_line(TrainOptions& options, Given& given, const Given& on_line) {
  if (on_line.contains("lr") == on_line.contains("base_lr")) return;
  if (on_line.contains("base_lr")) {
    options.lr.reset();
    given.erase("lr");
    return;
  }
  options.base_lr.reset();
  given.erase("base_lr");
  if (on_line.contains("base_batch")) return;
  options.base_batch = 0;
  given.erase("base_batch");
}

}  // namespace

void add_train_flags(CLI::App& command, TrainFlags& flags, const Given& only) {
  flags.command = &command;
  visit_options(flags.options, [&](const OptionInfo& info, auto& field) {
    if (!only.empty() && !only.contains(info.name)) return;
    using Field = std::remove_cvref_t<decltype(field)>;
    const std::string flag = (std::string(info.name) == "workers" ? "-n," : "") + flag_of(info.name);
    std::string text = info.text;
    if constexpr (std::is_same_v<Field, bool>) {
      command.add_flag(flag, field, text)->group(info.group);
    } else {
      CLI::Option* const option = command.add_option(flag, field, text)->group(info.group);
      option->take_last();  // a script's flags can be followed by one's own
      if constexpr (std::is_same_v<Field, std::string>) {
        option->type_name("TEXT");
        if (!field.empty()) option->default_str(field);
      } else if constexpr (std::is_arithmetic_v<Field>) {
        // CLI11 takes the nearest number that fits, and says nothing.
        option->check(
            [name = std::string(info.name)](const std::string& given) { return beyond_range(name, given); });
        if (field != 0) option->capture_default_str();
        if (info.zero != nullptr) {
          option->transform([zero = std::string(info.zero)](const std::string& given) {
            return given == zero ? std::string("0") : given;
          });
          if (field == 0) option->default_str(info.zero);
        }
      }
    }
  });
  if (only.empty())
    command
        .add_option("--config", flags.config,
                    "options from a TOML or JSON file; flags on the command line win")
        ->type_name("FILE");
  command.add_flag("--json", flags.json, "one JSON object a line on standard output");
}

Given TrainFlags::gather() {
  Given given;
  for (const std::string& name : option_names())
    if (const CLI::Option* option = command->get_option_no_throw(flag_of(name));
        option != nullptr && option->count() > 0)
      given.insert(name);
  expect_names(options, given);
  if (config.starts_with('-')) throw missing_value("--config", config);
  // What a script's unset variable leaves.
  if (given.contains("out") && options.out.empty())
    throw UsageError("--out '' is not understood; accepted: the name of a folder");
  if (given.contains("resume") && options.resume.empty())
    throw UsageError("--resume '' is not understood; accepted: a run's folder, or one checkpoint");
  if (given.contains("init") && options.init.empty())
    throw UsageError("--init '' is not understood; accepted: a run's folder, or one checkpoint");
  on_line = given;
  if (!config.empty()) given.merge(load_config(config, options, given));
  take_rate_of_line(options, given, on_line);
  if (!options.init.empty() && !options.resume.empty())
    throw UsageError("--init begins a new run, and --resume goes on with one; accepted: one of them");
  if (options.overwrite && !options.resume.empty())
    throw UsageError("--overwrite removes a run, and --resume goes on with one; accepted: one of them");
  // In a file, which may be the one that a run wrote, 0 beside the other is how it says which of the two
  // counts.
  for (const char* name : {"steps", "epochs"})
    if (given.contains(name) && options.steps == 0 && options.epochs == 0)
      throw UsageError(fmt::format("--{} '0' is out of range; accepted: 1 or more", name));
  return given;
}

}  // namespace lockstep::cli
