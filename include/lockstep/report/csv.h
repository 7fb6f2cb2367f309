// CSV files that grow, and reading them back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep {

// A CSV file as text, cell by cell. Without quoting: the files of this room have none.
struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as long as columns

  // The cells of one column as numbers, NaN where a cell is empty or no number; empty when there is no such
  // column.
  std::vector<double> numbers(std::string_view column) const;
};
// A last line that does not end is left out: its writer was killed. Throws UsageError naming a row with the
// wrong number of cells, unless `left_out` is there to take it ("line 7 has 3 cells, not 10"); SystemError
// when the file can't be read.
CsvTable read_csv(const std::filesystem::path& file, std::vector<std::string>* left_out = nullptr);

// Appends rows. Each flush is one write, so that readers see whole lines.
class CsvFile {
 public:
  // Makes the file with `columns` as its first line, or goes on with one whose first line is the same: of its
  // rows only those stay for which `keep` of the number in column "step" is true; lines that are no rows of
  // it are left out with a warning. Throws UsageError for other columns, SystemError.
  CsvFile(std::filesystem::path file, const std::vector<std::string>& columns,
          const std::function<bool(std::int64_t)>& keep);

  void add_row(std::string_view cells);  // "1,0.5,shm", without the end of line
  void flush();

 private:
  std::filesystem::path file_;
  UniqueFd fd_;
  std::string waiting_;
};

}  // namespace lockstep
