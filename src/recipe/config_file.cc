#include "recipe/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json_text.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "recipe/toml.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostBytes = 1 << 20;  // a file of options has a few hundred

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

void expect_text(std::string_view text, const std::string& where) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw UsageError(where + ": is empty; accepted: options such as lanes = 8");
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

std::string_view trimmed(std::string_view text) {
  constexpr const char* kBlank = " \t\r\f";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::string_view line_of(std::string_view text, std::size_t number) {
  for (; number > 1 && !text.empty(); --number)
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return trimmed(text.substr(0, text.find('\n')));
}

// What is no TOML, but what people write who know other files of options: a flag alone, text without quotes,
// another comment. Says how TOML has it.
void explain_line(std::string_view line, const std::string& here) {
  if (line.starts_with(';')) throw UsageError(here + ": ';' begins no comment; accepted: # in its place");
  if (line.empty() || line.starts_with('[')) return;
  const std::size_t equals = line.find('=');
  const std::string key = in_short(std::string(trimmed(line.substr(0, std::min(equals, line.find('#'))))));
  std::string_view rest = equals == std::string_view::npos ? "" : trimmed(line.substr(equals + 1));
  const bool quoted = rest.starts_with('"') || rest.starts_with('\'');
  if (quoted && rest.find(rest.front(), 1) == std::string_view::npos)
    throw UsageError(fmt::format("{}: the text of {} is not closed by a {}", here, key, rest.front()));
  if (rest.starts_with('"') && rest.find('\\') != std::string_view::npos)
    throw UsageError(fmt::format(
        "{}: {} has a backslash in double quotes; accepted: in single quotes, where it stays as it is", here,
        key));
  if (!rest.empty() && std::string_view("\"'[{").find(rest.front()) != std::string_view::npos) return;
  const std::string value(trimmed(rest.substr(0, rest.find('#'))));
  TrainOptions options;
  Json one = Json::object();
  one[key] = value;
  const std::vector<std::string> names = option_names();
  const std::string name = *merge_json(options, one, here, Given(names.begin(), names.end())).begin();
  if (value.empty())
    throw UsageError(
        fmt::format("{0}: {1} has no value; accepted: {1} = true, a number, or \"text\"", here, key));
  if (const std::string beyond = beyond_range(name, value); !beyond.empty())
    throw UsageError(fmt::format("{}: {} {}", here, key, beyond));
  if (std::string_view("+-0123456789").find(value.front()) != std::string_view::npos) return;
  merge_json(options, one, here);  // an option that takes no text says so
  const char quote = value.find_first_of("\"\\") == std::string::npos ? '"' : '\'';
  throw UsageError(fmt::format("{0}: text goes into quotes; accepted: {1} = {2}{3}{2}", here, key, quote,
                               in_short(value)));
}

Json json_of(const toml::node& node, const std::string& key, const std::string& here) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* number = node.as_integer())
    return number->get() < 0 ? Json(number->get()) : Json(static_cast<std::uint64_t>(number->get()));
  throw UsageError(
      fmt::format("{}: {} needs one value; accepted: \"text\", a number, true or false", here, key));
}

std::vector<Entry> read_toml(std::string_view text, const std::string& where) {
  const auto here = [&](const toml::source_region& source) {
    return fmt::format("{} line {}", where, source.begin.line);
  };
  toml::table file;
  try {
    file = toml::parse(text);
  } catch (const toml::parse_error& error) {
    explain_line(line_of(text, error.source().begin.line), here(error.source()));
    throw UsageError(fmt::format("{}, column {}: {}", here(error.source()), error.source().begin.column,
                                 in_short(std::string(error.description()))));
  }
  std::multimap<std::uint32_t, Entry> entries;  // by line, since tables are sorted by name
  std::map<std::string, std::uint32_t> seen;
  const auto take = [&](const toml::key& key, const toml::node& node) {
    const std::uint32_t line = node.source().begin.line;
    const std::string name = in_short(std::string(key.str()));
    if (const auto [before, first] = seen.emplace(name, line); !first)
      throw UsageError(fmt::format("{}: {} needs one value, and has another in line {}", here(node.source()),
                                   name, before->second));
    entries.emplace(line, Entry{name, json_of(node, name, here(node.source())), here(node.source())});
  };
  for (const auto& [key, node] : file) {
    const toml::table* const section = node.as_table();
    if (section == nullptr) {
      take(key, node);
    } else if (key.str() == "train") {
      for (const auto& [inner, value] : *section) take(inner, value);
    } else {
      throw UsageError(fmt::format("{}: section [{}] is not understood; accepted: [train], or none",
                                   here(node.source()), key.str()));
    }
  }
  std::vector<Entry> sorted;
  for (auto& [line, entry] : entries) sorted.push_back(std::move(entry));
  return sorted;
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

std::vector<Entry> read_json(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> objects;  // the keys of those that are open
  const auto refuse_twice = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) objects.emplace_back();
    if (event == Json::parse_event_t::object_end) objects.pop_back();
    if (event == Json::parse_event_t::key && !objects.back().insert(parsed.get<std::string>()).second)
      throw UsageError(
          fmt::format("{}: {} needs one value, and has two", where, in_short(parsed.get<std::string>())));
    return true;
  };
  if (nests_deeper(text)) throw UsageError(fmt::format("{}: nested deeper than {}", where, kMostJsonDepth));
  Json json;
  try {
    json = Json::parse(text, refuse_twice);
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("{}: {}", where, in_short(place_and_cause(error.what()))));
  }
  if (json.is_object() && json.size() == 1 && json.contains("train")) json = Json(json["train"]);
  if (!json.is_object()) throw UsageError(where + ": one object of options is expected");
  std::vector<Entry> entries;
  for (const auto& [key, value] : json.items()) entries.push_back({in_short(key), value, where});
  return entries;
}

Given take(std::string_view text, const std::string& file, TrainOptions& options, const Given& given) {
  const std::string where = "--config " + file;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // some editors mark UTF-8
  expect_text(text, where);
  Given found;
  for (const Entry& entry : file.ends_with(".json") ? read_json(text, where) : read_toml(text, where)) {
    Json one = Json::object();
    one[entry.key] = entry.value;
    for (const std::string& name : merge_json(options, one, entry.where, given))
      if (!found.insert(name).second)  // as lane-batch and as lane_batch
        throw UsageError(fmt::format("{}: {} needs one value, and has two", entry.where, entry.key));
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

}  // namespace

Given parse_config(std::string_view text, const std::string& file, TrainOptions& options,
                   const Given& given) {
  try {
    return take(text, file, options, given);
  } catch (const UsageError& error) {
    throw UsageError(one_line(error.what()));  // quoted keys and values may have several
  }
}

Given load_config(const std::string& file, TrainOptions& options, const Given& given) {
  const std::string where = "--config " + file;
  std::error_code none;
  if (std::filesystem::is_directory(file, none))
    throw UsageError(where + ": is a folder; accepted: a TOML or JSON file");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw UsageError(fmt::format("{}: can't be read: {}", where, std::strerror(errno)));
  std::string text(kMostBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMostBytes)
    throw UsageError(fmt::format("{}: is too large; accepted: at most {}", where, format_bytes(kMostBytes)));
  return parse_config(text, file, options, given);
}

}  // namespace lockstep
