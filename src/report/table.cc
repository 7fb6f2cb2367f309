#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

const char* escape(Style style) {
  switch (style) {
    case Style::plain: return "";
    case Style::bold: return "\033[1m";
    case Style::dim: return "\033[2m";
    case Style::red: return "\033[31m";
  }
  return "";
}

std::string pad(const std::string& text, std::size_t width, Align align) {
  const std::string blanks(width - std::min(width, display_width(text)), ' ');
  return align == Align::left ? text + blanks : blanks + text;
}

}  // namespace

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string counted(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string format_number(double value) {
  if (!std::isfinite(value)) return "-";
  if (value >= 1000) {
    const std::string digits = fmt::format("{:.0f}", value);
    std::string grouped;
    for (std::size_t i = 0; i < digits.size(); ++i) {
      if (i != 0 && (digits.size() - i) % 3 == 0) grouped += ' ';
      grouped += digits[i];
    }
    return grouped;
  }
  return fmt::format("{:.{}f}", value, value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3);
}

void Table::add_row(std::vector<Cell> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

void Table::add_gap() { rows_.emplace_back(); }

std::string Table::render(bool colours) const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_)
      if (!row.empty()) width = std::max(width, display_width(row[c].text));
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](auto&& cell) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (c != 0) line += "  ";
      const Cell here = cell(c);
      const std::string padded = pad(here.text, widths[c], columns_[c].align);
      const bool styled = colours && here.style != Style::plain;
      line += styled ? escape(here.style) + padded + "\033[0m" : padded;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  };
  add_line([&](std::size_t c) { return Cell{columns_[c].title, Style::dim}; });
  for (const auto& row : rows_) {
    if (row.empty())
      text += "\n";
    else
      add_line([&](std::size_t c) { return row[c]; });
  }
  return text;
}

}  // namespace lockstep
