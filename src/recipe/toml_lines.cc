#include "recipe/toml_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr const char* kBlank = " \t\r\f\v";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

bool ends_here(std::string_view rest) {
  rest = trimmed(rest);
  return rest.empty() || rest.front() == '#';
}

bool is_quote(char c) { return c == '"' || c == '\''; }

// Text in quotes at the beginning of `text`, which goes on behind it. False when it is never closed. A
// backslash keeps its meaning to a path: it only hides a quote or another one, in double quotes.
bool take_quoted(std::string_view& text, std::string& value) {
  const char quote = text.front();
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      text.remove_prefix(i + 1);
      return true;
    }
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (quote == '"' && text[i] == '\\' && (next == '"' || next == '\\')) ++i;
    value += text[i];
  }
  return false;
}

class Reader {
 public:
  Reader(const std::string& where, std::vector<TomlLine>& lines) : where_(where), lines_(lines) {}

  void take(std::string_view line) {
    ++number_;
    line = trimmed(line);
    if (line.empty() || line.front() == '#' || line.front() == ';') return;
    if (line.front() == '[')
      begin_section(line);
    else
      lines_.push_back(setting(line));
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError(fmt::format("{} line {}: {}", where_, number_, what));
  }

  void begin_section(std::string_view line) {
    const std::size_t end = line.find(']');
    if (end == std::string_view::npos || !ends_here(line.substr(end + 1)))
      refuse(fmt::format("{} is not understood; accepted: [train], or key = value", line));
    section_ = trimmed(line.substr(1, end - 1));
  }

  TomlLine setting(std::string_view line) const {
    TomlLine found{.number = number_, .section = section_, .key = {}, .value = {}};
    std::string_view rest = line;
    if (is_quote(line.front())) {
      if (!take_quoted(rest, found.key)) refuse(fmt::format("{} is not closed by a {}", line, line.front()));
    } else {
      rest = line.substr(std::min(line.find_first_of("=#"), line.size()));
      found.key = trimmed(line.substr(0, line.size() - rest.size()));
    }
    rest = trimmed(rest);
    if (ends_here(rest)) {
      found.value = "true";
      return found;
    }
    if (rest.front() != '=') refuse(fmt::format("{} is not understood; accepted: key = value", line));
    found.value = value(trimmed(rest.substr(1)), found.key);
    return found;
  }

  std::string value(std::string_view text, const std::string& key) const {
    if (ends_here(text)) refuse(key + " needs one value, and has none");
    std::string value;
    if (is_quote(text.front())) {
      std::string_view rest = text;
      if (!take_quoted(rest, value))
        refuse(fmt::format("the text of {} = {} is not closed by a {}", key, text, text.front()));
      if (!ends_here(rest)) refuse(fmt::format("{} needs one value, and has {}", key, text));
      return value;
    }
    value = trimmed(text.substr(0, text.find('#')));
    if (value.front() == '[' || value.find_first_of(" \t") != std::string::npos)
      refuse(fmt::format("{} needs one value, and has {} (text with blanks goes into quotes)", key, value));
    return value;
  }

  const std::string& where_;
  std::vector<TomlLine>& lines_;
  int number_ = 0;
  std::string section_;
};

}  // namespace

std::vector<TomlLine> read_toml_lines(const std::string& text, const std::string& where) {
  std::vector<TomlLine> lines;
  Reader reader(where, lines);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) reader.take(line);
  return lines;
}

}  // namespace lockstep
