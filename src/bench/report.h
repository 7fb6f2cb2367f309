// Measured rows for people: the terminal's table, its closing sentence, and the plot.
#pragma once

#include <string>
#include <vector>

#include "bench/row.h"

namespace lockstep {

std::string bench_table(const std::vector<BenchRow>& rows, bool colours);

// Which variant is the fastest, where, and against whom. Empty without rows.
std::string bench_conclusion(const std::vector<BenchRow>& rows);

// Time over size, one line a variant, and the floor. An SVG document.
std::string bench_plot(const std::vector<BenchRow>& rows);

}  // namespace lockstep
