// A table for the terminal: aligned columns, rules between groups of rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

enum class Align : std::uint8_t { left, right };
enum class Style : std::uint8_t { plain, bold, dim, red };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::right;
  };
  struct Cell {
    std::string text;
    Style style = Style::plain;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add_row(std::vector<Cell> cells);
  void add_gap();  // an empty line

  // Colours (ANSI) only when asked for: on a terminal.
  std::string render(bool colours) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;  // an empty one is a gap
};

// Characters on the screen of UTF-8 text without wide or combining ones.
std::size_t display_width(const std::string& text);

// "1 worker", "8 workers"
std::string counted(std::int64_t count, const std::string& what);

// "0.123", "12.3", "12 345": at least three digits that matter.
std::string format_number(double value);

}  // namespace lockstep
