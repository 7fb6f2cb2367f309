// The agent of any node but 0: it tells node 0's, and does what that one says.
#pragma once

#include <vector>

#include "launch/agent_line.h"
#include "launch/agent_link.h"
#include "launch/first_failure.h"
#include "launch/job.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

// Without node 0's agent it judges by what it has seen itself, and the job is over.
class MemberLink : public AgentLink {
 public:
  MemberLink(Job job, AgentLine line);

  int fd() const override { return epoll_.get(); }
  std::optional<Order> poll() override;
  void failed(const WorkerEnd& end) override;
  void interrupted(int signal) override;
  void pausing() override;
  void going_on() override;
  void finished(LocalEnd end) override;
  void give_up(const std::string& reason) override;
  std::optional<Verdict> take_verdict() override;

 private:
  void look_after_lead();  // once a second
  void stopping();         // the job is about to end
  void take(const AgentMail& mail);
  void tell(const AgentMail& mail);
  void lose(const std::string& reason);
  Verdict judge_alone() const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  Job job_;
  std::optional<AgentLine> line_;  // none when node 0's agent is lost
  Clock::time_point look_at_ = Clock::now();
  UniqueFd epoll_;  // holds the line: it may be closed while somebody waits on it

  // Of one start of the group.
  Clock::time_point begin_ = Clock::now();
  std::vector<Failure> failures_;
  std::optional<LocalEnd> end_;
  std::optional<Order> order_;
  std::optional<Clock::time_point> end_by_;  // once the job is about to end
  std::optional<Verdict> verdict_;
};

}  // namespace lockstep::launcher
