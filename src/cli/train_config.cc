#include "cli/train_config.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

template <class Number>
bool is_number(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// CLI11 gives every value as text; what it was follows from what it looks like and what the option wants.
template <class T>
Json typed(const std::string& text) {
  if constexpr (!std::is_same_v<T, std::string>) {
    if (text == "true" || text == "false") return text == "true";
    if (std::uint64_t value = 0; is_number(text, value)) return value;
    if (std::int64_t value = 0; is_number(text, value)) return value;
    if (double value = 0; is_number(text, value)) return value;
  }
  return text;
}

Json read_toml(std::istream& in, const std::string& where) {
  Json json = Json::object();
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(in);
  } catch (const CLI::Error& error) {
    throw UsageError(fmt::format("{}: {}", where, error.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // a section begins or ends
    if (!item.parents.empty() && (item.parents.size() > 1 || item.parents[0] != "train"))
      throw UsageError(fmt::format("{}: section [{}] is not understood; accepted: [train], or none", where,
                                   fmt::join(item.parents, ".")));
    if (item.inputs.size() != 1)
      throw UsageError(
          fmt::format("{}: {} needs one value, and has {}", where, item.name, item.inputs.size()));
    std::string name = item.name;
    std::replace(name.begin(), name.end(), '-', '_');
    json[item.name] = item.inputs[0];
    TrainOptions options;
    visit_options(options, [&](const OptionInfo& info, auto& field) {
      if (name == info.name) json[item.name] = typed<std::remove_cvref_t<decltype(field)>>(item.inputs[0]);
    });
  }
  return json;
}

Json read_json(std::istream& in, const std::string& where) {
  try {
    Json json = Json::parse(in);
    if (json.is_object() && json.size() == 1 && json.contains("train")) return json["train"];
    return json;
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace

Given load_config(const std::string& file, TrainOptions& options, const Given& given) {
  const std::string where = "--config " + file;
  std::ifstream in(file);
  std::stringstream text;
  if (!in || !(text << in.rdbuf())) throw UsageError(where + ": can't be read (or is empty)");
  const Json json = file.ends_with(".json") ? read_json(text, where) : read_toml(text, where);
  return merge_json(options, json, where, given);
}

}  // namespace lockstep::cli
