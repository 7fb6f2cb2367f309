// What pages have in common.
#pragma once

#include <string>

#include "lockstep/report/csv.h"

namespace lockstep {

// From the doctype to <body>, with the styles: self-contained, light and dark. `title`: plain text.
std::string page_head(const std::string& title);
// A table that can be folded away; nothing of no rows.
std::string page_table(const CsvTable& table, const std::string& caption);

}  // namespace lockstep
