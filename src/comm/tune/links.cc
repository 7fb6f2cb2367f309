#include "comm/tune/links.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {
namespace {

// What a choice of route is made for: a bucket's part.
constexpr double kTypicalBytes = 1 << 20;
// A route that is not faster by this is no reason to leave the plain one.
constexpr double kFastEnoughToChange = 0.9;

std::string listed(const std::vector<int>& ranks) { return fmt::format("{}", fmt::join(ranks, " ")); }

}  // namespace

Links::Links(std::vector<int> nodes, std::vector<Link> table)
    : node_of_(std::move(nodes)), table_(std::move(table)) {
  while (static_cast<std::size_t>(count_ * count_) < table_.size()) ++count_;
}

const Link& Links::between(int a, int b) const {
  return of_nodes(node_of_[static_cast<std::size_t>(a)], node_of_[static_cast<std::size_t>(b)]);
}

double Links::seconds(int from, int to, double bytes) const {
  const int node = node_of_[static_cast<std::size_t>(from)];
  const Link& link = between(from, to);
  double users = sharing_;
  if (users == 0) users = static_cast<double>(std::count(node_of_.begin(), node_of_.end(), node));
  if (node == node_of_[static_cast<std::size_t>(to)]) users = 1;
  return link.latency_s + bytes * link.s_per_byte * users;
}

double Links::largest_change(const Links& before) const {
  constexpr double bytes = 1 << 20;
  double largest = 1;
  const int n = static_cast<int>(node_of_.size());
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) {
      const double now = seconds(a, b, bytes);
      const double then = before.seconds(a, b, bytes);
      largest = std::max(largest, std::max(now / then, then / now));
    }
  return largest;
}

std::shared_ptr<Links> Links::among(const std::vector<int>& ranks) const {
  std::vector<int> nodes;
  for (int r : ranks) nodes.push_back(node_of_[static_cast<std::size_t>(r)]);
  return std::make_shared<Links>(std::move(nodes), table_);
}

Routes Links::routes(std::vector<std::string>* reasons) const {
  const int n = static_cast<int>(node_of_.size());
  Routes routes = plain_routes(n);
  const Way way = [this](int from, int to) { return seconds(from, to, kTypicalBytes); };
  const auto slowest_of = [&](const std::vector<int>& ring) {
    std::pair<int, int> worst{ring[0], ring[0]};
    for (std::size_t i = 0; i < ring.size(); ++i) {
      const std::pair<int, int> edge{ring[i], ring[(i + 1) % ring.size()]};
      if (way(edge.first, edge.second) >= way(worst.first, worst.second)) worst = edge;
    }
    return worst;
  };
  if (n > 3) {
    const std::vector<int> ring = best_ring(n, way);
    if (slowest_link(ring, way) < kFastEnoughToChange * slowest_link(routes.ring, way)) {
      const auto [a, b] = slowest_of(routes.ring);
      if (reasons != nullptr)
        reasons->push_back(
            fmt::format("ring order {} instead of {}: it avoids the link between rank {} and rank {}, which "
                        "moves {:.0f} MB/s where "
                        "the slowest of the new ring moves {:.0f} MB/s",
                        listed(ring), listed(routes.ring), a, b, 1e-6 / between(a, b).s_per_byte,
                        1e-6 / between(slowest_of(ring).first, slowest_of(ring).second).s_per_byte));
      routes.ring = ring;
    }
  }
  const std::vector<Merge> tree = best_tree(n, way);
  const double plain = tree_time(routes.tree, n, way);
  const double best = tree_time(tree, n, way);
  if (best < kFastEnoughToChange * plain) {
    std::string merges;
    for (const Merge& merge : tree)
      merges += fmt::format("{}{}→{}", merges.empty() ? "" : ", ", merge.from, merge.into);
    if (reasons != nullptr)
      reasons->push_back(
          fmt::format("tree {} instead of sums on the lowest rank: {:.1f} ms instead of {:.1f} ms a MiB",
                      merges, best * 1e3, plain * 1e3));
    routes.tree = tree;
  }
  return routes;
}

std::string Links::describe() const {
  std::string text = "links between nodes: one-way latency in µs, MB/s both ways at once\n       ";
  for (int b = 0; b < count_; ++b) text += fmt::format("{:>18}", fmt::format("node {}", b));
  for (int a = 0; a < count_; ++a) {
    text += fmt::format("\nnode {:<2}", a);
    for (int b = 0; b < count_; ++b) {
      const Link& link = of_nodes(a, b);
      text += fmt::format(
          "{:>18}", link.s_per_byte == 0
                        ? "-"
                        : fmt::format("{:.0f} µs {:.0f} MB/s", link.latency_s * 1e6, 1e-6 / link.s_per_byte));
    }
  }
  return text;
}

}  // namespace lockstep
