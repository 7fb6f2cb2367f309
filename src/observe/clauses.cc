#include "observe/clauses.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {

std::string duration_text(double ns) {
  if (ns >= 1e9) return fmt::format("{:.1f} s", ns / 1e9);
  if (ns >= 1e6) return fmt::format("{:.1f} ms", ns / 1e6);
  return fmt::format("{:.1f} µs", std::max(ns, 0.0) / 1e3);
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    text += i == 0 ? " " : ", ";
    text += end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (char c : text) safe.append((c == '{' || c == '}') ? 2 : 1, c);
  return safe;
}

void Clauses::add(int rank, const std::string& one, const std::string& many, double ns) {
  const auto same = [&](const Clause& clause) { return clause.one == one; };
  auto found = std::find_if(clauses_.begin(), clauses_.end(), same);
  if (found == clauses_.end()) found = clauses_.insert(clauses_.end(), {.one = one, .many = many});
  found->ranks.push_back(rank);
  found->ns = std::max(found->ns, ns);
}

std::string Clauses::joined(const char* separator) const {
  std::string text;
  for (const Clause& clause : clauses_) {
    const std::string& form = clause.ranks.size() == 1 ? clause.one : clause.many;
    text += fmt::format("{}{} {}", text.empty() ? "" : separator, rank_list(clause.ranks),
                        fmt::format(fmt::runtime(form), duration_text(clause.ns)));
  }
  return text;
}

}  // namespace lockstep
