// Sentences about several ranks at once: what is the same for some of them is said once.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// "2.3 s", "12.0 ms", "4.1 µs"; below zero is zero.
std::string duration_text(double ns);

// "rank 2", "ranks 0, 1, 3", "ranks 0-6, 8": three or more neighbours are one range. Ascending.
std::string rank_list(const std::vector<int>& ranks);

// The text with its braces doubled: names come from memory or files of others, and "{}" is a clause's own.
std::string escaped(const std::string& text);

// Clauses in the order in which they were first added, each with the ranks that it holds for.
class Clauses {
 public:
  // `one` and `many` are what follows a single rank and several; "{}" in them is the time, the longest
  // of the ranks'. Ranks of equal `one` share a clause.
  void add(int rank, const std::string& one, const std::string& many, double ns = 0);
  bool empty() const { return clauses_.empty(); }
  std::string joined(const char* separator) const;

 private:
  struct Clause {
    std::string one;
    std::string many;
    std::vector<int> ranks = {};
    double ns = 0;
  };
  std::vector<Clause> clauses_;
};

}  // namespace lockstep
