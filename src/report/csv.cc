#include "lockstep/report/csv.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/output_file.h"
#include "base/split.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

std::string join(const std::vector<std::string>& cells) { return fmt::format("{}", fmt::join(cells, ",")); }

}  // namespace

std::vector<double> CsvTable::numbers(std::string_view column) const {
  std::vector<double> values;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (columns[c] != column) continue;
    for (const auto& row : rows) {
      double value = NAN;
      const std::string& cell = row[c];
      const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
      values.push_back(error == std::errc() && end == cell.data() + cell.size() ? value : NAN);
    }
  }
  return values;
}

CsvTable read_csv(const std::filesystem::path& file, std::vector<std::string>* left_out) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw SystemError("reading " + file.string(), errno);
  std::stringstream text;
  text << in.rdbuf();
  CsvTable table;
  int number = 0;
  for (std::string line; std::getline(text, line) && !text.eof();) {
    ++number;
    std::vector<std::string> cells = split_at_commas(line);
    if (table.columns.empty()) {
      table.columns = std::move(cells);
      continue;
    }
    if (cells.size() != table.columns.size()) {
      const std::string wrong =
          fmt::format("line {} has {} cells, not {}", number, cells.size(), table.columns.size());
      if (left_out == nullptr) throw UsageError(fmt::format("{}: {}", file.string(), wrong));
      left_out->push_back(wrong);
      continue;
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

CsvFile::CsvFile(std::filesystem::path file, const std::vector<std::string>& columns,
                 const std::function<bool(std::int64_t)>& keep)
    : file_(std::move(file)) {
  std::string text = join(columns) + "\n";
  if (std::filesystem::exists(file_)) {
    std::vector<std::string> left_out;
    const CsvTable before = read_csv(file_, &left_out);
    if (!before.columns.empty() && before.columns != columns)
      throw UsageError(
          fmt::format("{}: its columns are {}, not {}: it is of another version; accepted: once it is moved "
                      "away, a new one is begun",
                      file_.string(), join(before.columns), join(columns)));
    if (!left_out.empty())
      log().warn("{}: {}{}: left out, and the rest is kept", file_.string(), left_out.front(),
                 left_out.size() == 1 ? "" : fmt::format(" (and {} more like it)", left_out.size() - 1));
    const auto at = static_cast<std::size_t>(std::ranges::find(columns, "step") - columns.begin());
    for (const auto& row : before.rows) {
      std::int64_t number = 0;
      if (at < row.size()) std::from_chars(row[at].data(), row[at].data() + row[at].size(), number);
      if (keep(number)) text += join(row) + "\n";
    }
  }
  replace_file(file_, text, Sync::yes);
  fd_.reset(::open(file_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!fd_) throw SystemError("opening " + file_.string(), errno);
}

void CsvFile::add_row(std::string_view cells) {
  waiting_ += cells;
  waiting_ += '\n';
}

void CsvFile::flush() {
  write_all(fd_.get(), std::as_bytes(std::span(waiting_)), file_);
  waiting_.clear();
}

}  // namespace lockstep
