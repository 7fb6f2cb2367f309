#include "base/suggest.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Edits (insert, delete, replace, swap of two neighbours) from a to b.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last[b.size()];
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

void expect_one_of(const std::string& what, const std::string& word,
                   const std::vector<std::string>& accepted) {
  if (std::find(accepted.begin(), accepted.end(), word) == accepted.end())
    throw UsageError(what + " " + not_understood(word, accepted));
}

}  // namespace lockstep
