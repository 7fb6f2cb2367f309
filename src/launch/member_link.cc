#include "launch/member_link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

MemberLink::MemberLink(Job job, AgentLine line)
    : job_(std::move(job)), line_(std::move(line)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw SystemError("epoll_create1", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, line_->fd(), &event) != 0)
    throw SystemError("epoll_ctl", errno);
}

std::optional<AgentLink::Order> MemberLink::poll() {
  try {
    while (!verdict_ && line_) {
      const auto mail = line_->next();
      if (!mail) break;
      take(*mail);
    }
    if (!verdict_ && line_ && Clock::now() >= look_at_) look_after_lead();
  } catch (const net::ConnectionLost& lost) {
    lose(lost.reason);
  }
  return std::exchange(order_, std::nullopt);
}

void MemberLink::look_after_lead() {
  look_at_ = Clock::now() + kBeat;
  if (!end_) line_->beat();
  line_->check_quiet();
  if (end_by_ && Clock::now() >= *end_by_) throw net::ConnectionLost{"did not say how the job ended"};
}

// Node 0 gives up those that don't end before it is given up itself.
void MemberLink::stopping() {
  if (!end_by_) end_by_ = Clock::now() + job_.grace + 2 * kEndPatience;
}

void MemberLink::take(const AgentMail& mail) {
  if (const auto* const stop = std::get_if<Stop>(&mail)) {
    order_ = stop->order;
    stopping();
  } else if (const auto* const verdict = std::get_if<Verdict>(&mail)) {
    verdict_ = *verdict;
  } else if (const auto* const given_up = std::get_if<GivenUp>(&mail)) {
    lose("gave up: " + given_up->why);
  } else {
    throw net::ConnectionLost{"sent a message that is not node 0's to send"};
  }
}

void MemberLink::tell(const AgentMail& mail) {
  if (!line_) return;
  try {
    line_->send(mail);
  } catch (const net::ConnectionLost& lost) {
    lose(lost.reason);
  }
}

void MemberLink::lose(const std::string& reason) {
  line_.reset();  // also leaves the epoll set
  job_.nodes.front().lost = reason;
  failures_.push_back({.kind = Failure::Kind::lost, .node = 0, .seconds = seconds()});
  if (!order_) order_ = Order{};
}

void MemberLink::failed(const WorkerEnd& end) {
  failures_.push_back({.kind = Failure::Kind::worker, .node = job_.node, .seconds = seconds(), .end = end});
  stopping();
  tell(WorkerFailed{end});
}

void MemberLink::interrupted(int signal) {
  job_.nodes[static_cast<std::size_t>(job_.node)].interrupted_by = signal;
  stopping();
  tell(Interrupted{signal});
}

void MemberLink::pausing() { tell(Paused{}); }

void MemberLink::going_on() { tell(Alive{}); }

void MemberLink::finished(LocalEnd end) {
  tell(Finished{end});
  end_ = std::move(end);
}

void MemberLink::give_up(const std::string& reason) { tell(GivenUp{reason}); }

Verdict MemberLink::judge_alone() const {
  Verdict verdict{.nodes = job_.nodes, .workers = end_->workers};
  std::sort(verdict.workers.begin(), verdict.workers.end(),
            [](const WorkerEnd& a, const WorkerEnd& b) { return a.rank < b.rank; });
  const auto first = first_failure(failures_);
  if (first && first->kind == Failure::Kind::worker) {
    verdict.first_failed = first->end.rank;
    if (const auto lines = end_->last_lines.find(first->end.rank); lines != end_->last_lines.end())
      verdict.last_lines = lines->second;
  } else {
    verdict.first_failed_node = 0;
  }
  return verdict;
}

std::optional<Verdict> MemberLink::take_verdict() {
  if (!verdict_ && !line_ && end_) verdict_ = judge_alone();
  if (!verdict_) return std::nullopt;
  begin_ = Clock::now();
  failures_.clear();
  end_.reset();
  order_.reset();
  end_by_.reset();
  return std::exchange(verdict_, std::nullopt);
}

}  // namespace lockstep::launcher
