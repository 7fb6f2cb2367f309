#include <sstream>

#include "comm/fault_worker.h"

namespace lockstep::testing {

std::string to_line(const Report& report) {
  std::ostringstream line;
  line << "error\t" << report.group << '\t' << static_cast<int>(report.kind) << '\t' << report.peer << '\t';
  for (int rank : report.missing) line << rank << ' ';
  line << '\t' << report.thrown_ns << '\t' << report.sticky_ns << '\t' << report.sticky << '\t'
       << report.text;
  return line.str();
}

Report parse_report(const std::string& line) {
  std::istringstream fields(line);
  const auto field = [&] {
    std::string text;
    std::getline(fields, text, '\t');
    return text;
  };
  field();
  Report report;
  report.group = field();
  report.kind = static_cast<ErrorKind>(std::stoi(field()));
  report.peer = std::stoi(field());
  std::istringstream missing(field());
  for (int rank = 0; missing >> rank;) report.missing.push_back(rank);
  report.thrown_ns = std::stoll(field());
  report.sticky_ns = std::stoll(field());
  report.sticky = field();
  std::getline(fields, report.text);
  return report;
}

}  // namespace lockstep::testing
