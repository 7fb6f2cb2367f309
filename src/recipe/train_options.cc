#include "recipe/train_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/suggest.h"
#include "lockstep/base/error.h"
#include "recipe/rate_options.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
const char* accepted_kind() {
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, std::uint64_t>) return "a whole number, 0 or more";
  if constexpr (std::is_same_v<T, std::int64_t>) return "a whole number";
  return "a number";
}

// Whether `json` is a T, without the library's silent conversions.
template <class T>
bool holds(const Json& json) {
  if constexpr (std::is_same_v<T, std::string>) return json.is_string();
  if constexpr (std::is_same_v<T, bool>) return json.is_boolean();
  if constexpr (std::is_same_v<T, std::uint64_t>) return json.is_number_unsigned();
  if constexpr (std::is_same_v<T, std::int64_t>)
    return json.is_number_integer() && (!json.is_number_unsigned() || json.get<std::uint64_t>() <= INT64_MAX);
  return json.is_number();
}

template <class T>
void take(T& field, const Json& json, const OptionInfo& info, const std::string& where) {
  if constexpr (kIsOptional<T>) {
    typename T::value_type value{};
    take(value, json, info, where);
    field = value;
  } else if (info.zero != nullptr && json == info.zero) {
    field = T{};
  } else {
    if (!holds<T>(json))
      throw UsageError(fmt::format("{}: {} {} is not understood; accepted: {}{}", where, info.name,
                                   json.dump(), accepted_kind<T>(),
                                   info.zero == nullptr ? "" : std::string(" or ") + info.zero));
    field = json.get<T>();
  }
}

}  // namespace

std::string flag_of(const std::string& name) {
  std::string flag = "--" + name;
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  const TrainOptions options;
  visit_options(options, [&](const OptionInfo& info, const auto&) { names.emplace_back(info.name); });
  return names;
}

Json to_json(const TrainOptions& options) {
  Json json = Json::object();
  visit_options(options, [&](const OptionInfo& info, const auto& field) {
    if constexpr (kIsOptional<std::remove_cvref_t<decltype(field)>>) {
      if (field) json[info.name] = *field;
    } else {
      json[info.name] = field;
    }
  });
  return json;
}

Given merge_json(TrainOptions& options, const Json& json, const std::string& where, const Given& except) {
  if (!json.is_object()) throw UsageError(where + ": one object of options is expected");
  const std::vector<std::string> names = option_names();
  Given given;
  for (const auto& [key, value] : json.items()) {
    std::string name = key;
    std::ranges::replace(name, '-', '_');
    if (std::ranges::find(names, name) == names.end())
      throw UsageError(fmt::format("{}: key {}", where, not_understood(key, names)));
    given.insert(name);
    if (except.contains(name)) continue;
    visit_options(options, [&, &key_value = value](const OptionInfo& info, auto& field) {
      if (name == info.name) take(field, key_value, info, where);
    });
  }
  return given;
}

void continue_options(TrainOptions& options, const Given& given, const TrainOptions& before) {
  const Json now = to_json(options), then = to_json(before);
  const bool length_matters = falls_to_end(before);
  Json kept = Json::object();
  visit_options(options, [&](const OptionInfo& info, const auto&) {
    const std::string name = info.name;
    const bool fixed = info.role == Role::defines || (info.role == Role::length && length_matters);
    if (info.role == Role::runs) return;
    if (!given.contains(name)) {
      // --steps alone replaces --epochs, and the other way round.
      const bool replaced = info.role == Role::length && name != "seed" &&
                            (given.contains("steps") || given.contains("epochs"));
      if (then.contains(name)) kept[name] = replaced ? Json(0) : then.at(name);
    } else if (fixed && now.value(name, Json()) != then.value(name, Json())) {
      throw UsageError(fmt::format(
          "{} {} would make another run: the checkpoint's is {}; accepted: --resume without {}, "
          "or --init for a new run with its weights{}",
          flag_of(name), now.at(name).dump(), then.contains(name) ? then.at(name).dump() : "none",
          flag_of(name), info.group == std::string_view(kModelGroup) ? ", if they fit that model" : ""));
    }
  });
  merge_json(options, kept, "the checkpoint");
  if (before.base_lr) options.lr.reset();  // a default that was filled in
}

void take_model(TrainOptions& options, const Given& given, const TrainOptions& before) {
  const Json then = to_json(before);
  Json taken = Json::object();
  visit_options(options, [&](const OptionInfo& info, const auto&) {
    if (info.group == std::string_view(kModelGroup) && !given.contains(info.name))
      taken[info.name] = then.at(info.name);
  });
  merge_json(options, taken, "the checkpoint");
}

}  // namespace lockstep
