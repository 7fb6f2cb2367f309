// The measurement behind comm/tune/links.h.
#include <algorithm>
#include <cstring>

#include "comm/call/internal_call.h"
#include "comm/call/nodes.h"
#include "comm/tune/links.h"
#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

constexpr double kBudget = 1.2;       // seconds for all rounds together
constexpr double kMostForOne = 0.35;  // and for one pair
constexpr std::size_t kFirst = std::size_t{64} << 10;
constexpr std::size_t kLargest = std::size_t{4} << 20;

class Probe {
 public:
  Probe(WireChannel& channel, std::chrono::milliseconds timeout)
      : channel_(channel), out_(kLargest), in_(kLargest) {
    call_.what = Collective::send;
    call_.dtype = DType::u8;
    call_.timeout = timeout;
    channel_.begin(call_, card_of(call_, {}), WireChannel::Kind::point_to_point);
  }

  // Both ranks of a pair call this at the same time.
  Link measure(int peer, double budget_s) {
    for (int i = 0; i < 3; ++i) swap(peer, 64);
    std::vector<double> times;
    for (int i = 0; i < 9; ++i) times.push_back(swap(peer, 64));
    std::nth_element(times.begin(), times.begin() + 4, times.end());
    Link link{.latency_s = agreed(peer, times[4]), .s_per_byte = 0};
    double spent = 0;
    // Ever more bytes: what shapes a link lets the first ones through at any speed.
    for (std::size_t bytes = kFirst;; bytes *= 4) {
      const double time = agreed(peer, swap(peer, bytes));
      link.s_per_byte = std::max(time - link.latency_s, time / 8) / static_cast<double>(bytes);
      spent += time;
      if (bytes < kLargest && spent + 4 * time <= budget_s) continue;
      // A core that was busy elsewhere makes a link look slow, never fast: the best of a few counts.
      for (double best = time; spent + best <= budget_s && spent < 8 * best;) {
        const double again = agreed(peer, swap(peer, bytes));
        spent += again;
        best = std::min(best, again);
        link.s_per_byte = std::max(best - link.latency_s, best / 8) / static_cast<double>(bytes);
      }
      return link;
    }
  }

 private:
  double swap(int peer, std::size_t bytes) {
    const Outgoing send{peer, std::span(out_).first(bytes)};
    const Incoming recv{peer, std::span(in_).first(bytes)};
    const std::int64_t start = now_ns();
    channel_.exchange({&send, 1}, {&recv, 1}, {});
    return static_cast<double>(now_ns() - start) * 1e-9;
  }

  // The larger of both ranks' figures, so that both go on in the same way.
  double agreed(int peer, double mine) {
    std::memcpy(out_.data(), &mine, sizeof mine);
    swap(peer, sizeof mine);
    double theirs = 0;
    std::memcpy(&theirs, in_.data(), sizeof theirs);
    return std::max(mine, theirs);
  }

  WireChannel& channel_;
  Call call_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

}  // namespace

// A tournament: in each of its rounds every node plays one other, and after the last one all have met.
std::shared_ptr<Links> measure_links(Engine& engine, WireChannel& channel,
                                     std::chrono::milliseconds timeout) {
  const auto members = members_of_nodes(engine.nodes());
  const int nodes = static_cast<int>(members.size());
  std::vector<int> node_of(static_cast<std::size_t>(engine.size()));
  for (int m = 0; m < nodes; ++m)
    for (int r : members[static_cast<std::size_t>(m)]) node_of[static_cast<std::size_t>(r)] = m;
  const int own = node_of[static_cast<std::size_t>(engine.rank())];
  const auto& mates = members[static_cast<std::size_t>(own)];
  std::vector<double> found(2 * static_cast<std::size_t>(nodes * nodes), 0);
  const auto keep = [&](int a, int b, const Link& link) {
    const auto at = 2 * static_cast<std::size_t>(a * nodes + b);
    found[at] = link.latency_s;
    found[at + 1] = link.s_per_byte;
  };
  const int players = nodes + nodes % 2;  // an odd node rests
  const double budget = std::min(kMostForOne, kBudget / std::max(1, players));
  {
    Probe probe(channel, timeout);
    if (engine.rank() == mates.front()) {
      for (int round = 0; round < players - 1; ++round) {
        // The last player stays, the others go round.
        int other = (2 * round - own + 2 * (players - 1)) % (players - 1);
        if (own == players - 1) other = round;
        if (own != players - 1 && other == own) other = players - 1;
        if (other >= nodes || other == own) continue;
        const Link link = probe.measure(members[static_cast<std::size_t>(other)].front(), budget);
        if (own < other) {
          keep(own, other, link);
          keep(other, own, link);
        }
      }
    }
    const bool pair = mates.size() > 1 && (engine.rank() == mates[0] || engine.rank() == mates[1]);
    if (pair) {
      const Link link = probe.measure(engine.rank() == mates[0] ? mates[1] : mates[0], kMostForOne / 4);
      if (engine.rank() == mates[0]) keep(own, own, link);
    }
  }
  Call sum = internal_call(Collective::all_reduce, found.data(), found.size(), -1);
  sum.dtype = DType::f64;
  sum.timeout = timeout;
  engine.run(sum);
  std::vector<Link> table;
  for (std::size_t i = 0; i < found.size(); i += 2) table.push_back({found[i], found[i + 1]});
  return std::make_shared<Links>(std::move(node_of), std::move(table));
}

}  // namespace lockstep
