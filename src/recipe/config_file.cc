#include "recipe/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "recipe/toml_lines.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// One option of the file, and the place that a message about it names.
struct Entry {
  std::string key;
  Json value;
  std::string where;
};

// Of a long line only the beginning.
std::string in_short(std::string text) {
  constexpr std::size_t kMost = 200;
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not within a character
  return text.substr(0, end) + "…";
}

void expect_text(const std::string& text, const std::string& where) {
  int line = 1;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') ++line;
    if ((byte < 0x20 && c != '\n' && c != '\t' && c != '\r' && c != '\f') || byte == 0x7F)
      throw UsageError(fmt::format("{}: is not text: line {} has a byte 0x{:02x}", where, line, byte));
  }
  try {
    (void)Json(text).dump();
  } catch (const Json::exception&) {
    throw UsageError(where + ": is not text: it has bytes that are no UTF-8");
  }
}

std::string read_text(const std::string& file, const std::string& where) {
  std::error_code none;
  if (std::filesystem::is_directory(file, none))
    throw UsageError(where + ": is a folder; accepted: a TOML or JSON file");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw UsageError(fmt::format("{}: can't be read: {}", where, std::strerror(errno)));
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // some editors mark UTF-8
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    throw UsageError(where + ": is empty; accepted: options such as lanes = 8");
  expect_text(text, where);
  return text;
}

template <class Number>
bool is_number(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// A line gives its value as text; what it is follows from what it looks like and what the option wants.
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

Json value_of(const std::string& key, const std::string& text, const std::string& where) {
  std::string name = key;
  std::ranges::replace(name, '-', '_');
  if (const std::string beyond = beyond_range(name, text); !beyond.empty())
    throw UsageError(fmt::format("{}: {} {}", where, key, beyond));
  Json value = text;
  TrainOptions options;
  visit_options(options, [&](const OptionInfo& info, auto& field) {
    if (name == info.name) value = typed<std::remove_cvref_t<decltype(field)>>(text);
  });
  return value;
}

std::vector<Entry> read_toml(const std::string& text, const std::string& where) {
  std::vector<Entry> entries;
  std::map<std::string, int> seen;
  for (TomlLine& line : read_toml_lines(text, where)) {
    const std::string here = fmt::format("{} line {}", where, line.number);
    if (line.section.empty() && line.key.starts_with("train.")) line.key.erase(0, 6);
    if (!line.section.empty() && line.section != "train")
      throw UsageError(
          fmt::format("{}: section [{}] is not understood; accepted: [train], or none", here, line.section));
    if (const auto [before, first] = seen.emplace(line.key, line.number); !first)
      throw UsageError(
          fmt::format("{}: {} needs one value, and has another in line {}", here, line.key, before->second));
    entries.push_back({line.key, value_of(line.key, line.value, here), here});
  }
  return entries;
}

// The library says "[json.exception.parse_error.101] parse error at line 2, column 10: syntax error while
// parsing value - unexpected end of input".
std::string place_and_cause(std::string message) {
  const auto cut = [&](const std::string& from, const std::string& to) {
    const std::size_t begin = message.find(from);
    const std::size_t end = begin == std::string::npos ? begin : message.find(to, begin + from.size());
    if (end != std::string::npos) message.erase(begin, end + to.size() - begin);
  };
  cut("[json.exception.", "] ");
  cut("parse error at ", "");
  cut("syntax error while parsing ", " - ");
  return message;
}

std::vector<Entry> read_json(const std::string& text, const std::string& where) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("{}: {}", where, in_short(place_and_cause(error.what()))));
  }
  if (json.is_object() && json.size() == 1 && json.contains("train")) json = Json(json["train"]);
  if (!json.is_object()) throw UsageError(where + ": one object of options is expected");
  std::vector<Entry> entries;
  for (const auto& [key, value] : json.items()) entries.push_back({key, value, where});
  return entries;
}

}  // namespace

Given load_config(const std::string& file, TrainOptions& options, const Given& given) {
  const std::string where = "--config " + file;
  const std::string text = read_text(file, where);
  Given found;
  for (const Entry& entry : file.ends_with(".json") ? read_json(text, where) : read_toml(text, where)) {
    Json one = Json::object();
    one[entry.key] = entry.value;
    const Given names = merge_json(options, one, entry.where, given);
    found.insert(names.begin(), names.end());
    // By itself, here, where it is known whose value it is.
    TrainOptions alone;
    merge_json(alone, one, entry.where, given);
    try {
      check_values(alone);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: {}", entry.where, error.what()));
    }
  }
  return found;
}

}  // namespace lockstep
