// "Did you mean": the closest of a few words.
#include <algorithm>
#include <numeric>

#include "cli/command.h"

namespace lockstep::cli {
namespace {

// Edits (insert, delete, replace) from a to b.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t edits = distance(word, candidate);
    // With as many edits as letters every word is "close".
    if (edits >= least || edits >= candidate.size()) continue;
    least = edits;
    best = candidate;
  }
  return best;
}

std::string not_understood(const std::string& word, const std::vector<std::string>& accepted) {
  std::string text = "'" + word + "' is not understood; accepted: ";
  for (std::size_t i = 0; i < accepted.size(); ++i) text += (i == 0 ? "" : ", ") + accepted[i];
  const std::string guess = nearest(word, accepted);
  return guess.empty() ? text : text + ". Did you mean '" + guess + "'?";
}

}  // namespace lockstep::cli
