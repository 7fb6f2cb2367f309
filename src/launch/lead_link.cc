#include "launch/lead_link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

LeadLink::LeadLink(Job job, std::vector<AgentLine> lines, std::function<int()> next_port)
    : job_(std::move(job)),
      next_port_(std::move(next_port)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      finished_(job_.nodes.size(), false) {
  if (!epoll_) throw SystemError("epoll_create1", errno);
  lines_.emplace_back();
  for (AgentLine& line : lines) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<std::uint32_t>(lines_.size());  // the node
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, line.fd(), &event) != 0)
      throw SystemError("epoll_ctl", errno);
    lines_.emplace_back(std::move(line));
  }
}

std::optional<AgentLink::Order> LeadLink::poll() {
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, 64, 0);
  for (int i = 0; i < count; ++i) hear(static_cast<int>(events[i].data.u32));
  if (Clock::now() >= look_at_) look_after_all();
  return std::exchange(order_, std::nullopt);
}

void LeadLink::hear(int node) {
  auto& line = lines_[static_cast<std::size_t>(node)];
  try {
    // After the verdict what comes belongs to the next start; it waits until the verdict is taken.
    while (!verdict_ && line) {
      const auto mail = line->next();
      if (!mail) break;
      take(node, *mail);
    }
  } catch (const net::ConnectionLost& lost) {
    lose(node, lost.reason);
  }
}

void LeadLink::look_after_all() {
  look_at_ = Clock::now() + kBeat;
  const bool late = told_ != Told::nothing && Clock::now() >= end_by_;
  for (int node = 1; node < static_cast<int>(lines_.size()); ++node) {
    hear(node);  // also has the connection notice a machine that vanished
    auto& line = lines_[static_cast<std::size_t>(node)];
    if (!line || verdict_) continue;
    line->beat();
    // Of one that has finished nothing more is needed, and it says nothing more: what comes after the verdict
    // would break the connection while that is under way.
    if (finished_[static_cast<std::size_t>(node)]) continue;
    try {
      line->check_quiet();
    } catch (const net::ConnectionLost& lost) {
      give_up_on(node, lost.reason);
      continue;
    }
    // It was told because of something else, which stays the cause.
    if (late) give_up_on(node, "did not end its workers when it was told to", Lost::as_consequence);
  }
}

void LeadLink::give_up_on(int node, const std::string& reason, Lost how) {
  try {
    lines_[static_cast<std::size_t>(node)]->send(GivenUp{"node " + std::to_string(node) + " " + reason});
  } catch (const net::ConnectionLost&) {
    // It does not matter any more.
  }
  lose(node, reason, how);
}

void LeadLink::take(int node, const AgentMail& mail) {
  if (const auto* const failed = std::get_if<WorkerFailed>(&mail)) {
    if (!is_rank_of(node, failed->end.rank)) throw net::ConnectionLost{"spoke for another node's worker"};
    Failure failure{.kind = Failure::Kind::worker, .node = node, .seconds = seconds(), .end = failed->end};
    failure.end.node = node;
    note(failure);
  } else if (const auto* const interrupted = std::get_if<Interrupted>(&mail)) {
    job_.nodes[static_cast<std::size_t>(node)].interrupted_by = interrupted->signal;
    note({.kind = Failure::Kind::interrupted, .node = node, .seconds = seconds()}, interrupted->signal);
  } else if (const auto* const finished = std::get_if<Finished>(&mail)) {
    take_finished(node, finished->end);
  } else if (const auto* const given_up = std::get_if<GivenUp>(&mail)) {
    lose(node, "gave up: " + given_up->why);
  } else {
    throw net::ConnectionLost{"sent a message that is not for node 0"};
  }
}

void LeadLink::take_finished(int node, LocalEnd end) {
  for (WorkerEnd& worker : end.workers) {
    if (!is_rank_of(node, worker.rank)) throw net::ConnectionLost{"spoke for another node's worker"};
    worker.node = node;
    ends_.workers.push_back(worker);
  }
  ends_.last_lines.merge(end.last_lines);
  finished_[static_cast<std::size_t>(node)] = true;
  judge_when_all_finished();
}

void LeadLink::lose(int node, const std::string& reason, Lost how) {
  lines_[static_cast<std::size_t>(node)].reset();  // also leaves the epoll set
  job_.nodes[static_cast<std::size_t>(node)].lost = reason;
  if (how == Lost::as_failure) note({.kind = Failure::Kind::lost, .node = node, .seconds = seconds()});
  judge_when_all_finished();
}

void LeadLink::note(const Failure& failure, int signal) {
  failures_.push_back(failure);
  const Told told = signal != 0 ? Told::signal : Told::settle;
  if (told <= told_) return;
  if (told_ == Told::nothing) end_by_ = Clock::now() + job_.grace + kEndPatience;
  told_ = told;
  const Order order{.signal = signal};
  if (failure.node != 0) order_ = order;
  for (std::size_t node = 1; node < lines_.size(); ++node)
    if (static_cast<int>(node) != failure.node) tell(static_cast<int>(node), Stop{order});
}

void LeadLink::tell(int node, const AgentMail& mail) {
  auto& line = lines_[static_cast<std::size_t>(node)];
  if (!line) return;
  try {
    line->send(mail);
  } catch (const net::ConnectionLost& lost) {
    lose(node, lost.reason);
  }
}

void LeadLink::failed(const WorkerEnd& end) {
  note({.kind = Failure::Kind::worker, .node = 0, .seconds = seconds(), .end = end});
}

void LeadLink::interrupted(int signal) {
  job_.nodes.front().interrupted_by = signal;
  note({.kind = Failure::Kind::interrupted, .node = 0, .seconds = seconds()}, signal);
}

void LeadLink::pausing() {
  for (std::size_t node = 1; node < lines_.size(); ++node) tell(static_cast<int>(node), Paused{});
}

void LeadLink::going_on() {
  for (std::size_t node = 1; node < lines_.size(); ++node) tell(static_cast<int>(node), Alive{});
}

void LeadLink::finished(LocalEnd end) { take_finished(0, std::move(end)); }

void LeadLink::give_up(const std::string& reason) {
  for (std::size_t node = 1; node < lines_.size(); ++node) tell(static_cast<int>(node), GivenUp{reason});
}

void LeadLink::judge_when_all_finished() {
  if (verdict_) return;
  for (std::size_t node = 0; node < finished_.size(); ++node)
    if (!finished_[node] && (node == 0 || lines_[node])) return;
  verdict_ = judge();
  for (auto& line : lines_) {
    try {
      if (line) line->send(*verdict_);
    } catch (const net::ConnectionLost&) {
      // It had nothing left to do in this start; if there is a next one, poll() finds it lost in that.
    }
  }
}

Verdict LeadLink::judge() {
  Verdict verdict{.nodes = job_.nodes, .workers = ends_.workers};
  std::sort(verdict.workers.begin(), verdict.workers.end(),
            [](const WorkerEnd& a, const WorkerEnd& b) { return a.rank < b.rank; });
  // What was heard of when a worker failed did not say whom it blames, nor that one failed after it was told
  // to stop.
  for (const WorkerEnd& end : ends_.workers) {
    const auto heard = std::find_if(failures_.begin(), failures_.end(), [&](const Failure& failure) {
      return failure.kind == Failure::Kind::worker && failure.end.rank == end.rank;
    });
    if (heard != failures_.end())
      heard->end.blames = end.blames;
    else if (may_be_cause(end))
      failures_.push_back(
          {.kind = Failure::Kind::worker, .node = end.node, .seconds = seconds(), .end = end});
  }
  const auto first = first_failure(failures_);
  if (!first) return verdict;
  if (first->kind != Failure::Kind::worker) {
    verdict.first_failed_node = first->node;
    return verdict;
  }
  verdict.first_failed = first->end.rank;
  if (const auto lines = ends_.last_lines.find(first->end.rank); lines != ends_.last_lines.end())
    verdict.last_lines = lines->second;
  const bool all_here = std::all_of(job_.nodes.begin(), job_.nodes.end(), [](const NodeEnd& node) {
    return node.lost.empty() && node.interrupted_by == 0;
  });
  if (all_here && restart_ < job_.max_restarts) verdict.next_master_port = next_port_();
  return verdict;
}

std::optional<Verdict> LeadLink::take_verdict() {
  if (!verdict_) return std::nullopt;
  ++restart_;
  look_at_ = Clock::now();
  begin_ = Clock::now();
  failures_.clear();
  ends_ = {};
  finished_.assign(finished_.size(), false);
  told_ = Told::nothing;
  order_.reset();
  return std::exchange(verdict_, std::nullopt);
}

bool LeadLink::is_rank_of(int node, int rank) const {
  const NodeEnd& end = job_.nodes[static_cast<std::size_t>(node)];
  return rank >= end.first_rank && rank < end.first_rank + end.workers;
}

}  // namespace lockstep::launcher
