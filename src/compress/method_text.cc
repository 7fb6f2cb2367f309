#include "compress/method_text.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/base/error.h"

namespace lockstep::compress {
namespace {

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(at, begin);
    parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

MethodText parse_method(const std::string& text) {
  MethodText method{.text = text};
  std::vector<std::string> parts = split(text, ':');
  method.name = parts.front();
  if (method.name.empty())
    throw UsageError(
        fmt::format("--compress: '{}' names no method; accepted: METHOD[:OPTIONS], as in topk:0.01", text));
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t equals = parts[i].find('=');
    if (equals == std::string::npos) {
      method.values.push_back(parts[i]);
    } else if (!method.options.emplace(parts[i].substr(0, equals), parts[i].substr(equals + 1)).second) {
      method.refuse(fmt::format("'{}' twice", parts[i].substr(0, equals)));
    }
  }
  constexpr double kMany = 1e15;
  if (method.options.contains("warmup"))
    method.warmup = static_cast<std::int64_t>(method.number("warmup", 0, 0, kMany));
  method.min = static_cast<std::size_t>(method.number("min", static_cast<double>(method.min), 0, kMany));
  return method;
}

}  // namespace

void MethodText::refuse(const std::string& what) const {
  throw UsageError(fmt::format("--compress {}: {}", text, what));
}

double MethodText::number(const std::string& key, double otherwise, double least, double most) {
  const auto found = options.find(key);
  if (found == options.end()) return otherwise;
  const std::string value = found->second;
  options.erase(found);
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !(number >= least && number <= most))
    refuse(fmt::format("{}={}; accepted: {} to {}", key, value, least, most));
  return number;
}

bool MethodText::flag(const std::string& key, bool otherwise) {
  const auto found = options.find(key);
  if (found == options.end()) return otherwise;
  const std::string value = found->second;
  options.erase(found);
  if (value != "on" && value != "off") refuse(fmt::format("{}={}; accepted: on, off", key, value));
  return value == "on";
}

void MethodText::done() const {
  if (!values.empty())
    refuse(fmt::format("nothing takes '{}'; accepted behind colons: NAME=VALUE, such as warmup=100{}",
                       values.front(), name == "powersgd" ? " or rank=4" : ""));
  if (!options.empty())
    refuse(fmt::format("{} has no option '{}'; every method has warmup=STEPS and min=ELEMENTS", name,
                       options.begin()->first));
}

std::vector<Rule> parse_rules(std::string_view text) {
  std::vector<Rule> rules;
  for (const std::string& item : split(text, ',')) {
    const std::size_t equals = item.find('='), colon = item.find(':');
    const bool named = equals != std::string::npos && (colon == std::string::npos || equals < colon);
    if (named && equals == 0) throw UsageError(fmt::format("--compress: '{}' names no parameter", item));
    rules.push_back(named ? Rule{item.substr(0, equals), parse_method(item.substr(equals + 1))}
                          : Rule{"*", parse_method(item)});
    if (rules.size() > 1 && rules[rules.size() - 2].pattern == "*")
      throw UsageError(fmt::format(
          "--compress: '{}' comes behind a method for all parameters; accepted: before it", item));
  }
  return rules;
}

bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  for (std::size_t at = star; at <= name.size(); ++at)
    if (matches(pattern.substr(star + 1), name.substr(at))) return true;
  return false;
}

}  // namespace lockstep::compress
