// The agent of node 0: everybody tells it, and it tells everybody.
#pragma once

#include <functional>
#include <vector>

#include "launch/agent_line.h"
#include "launch/agent_link.h"
#include "launch/first_failure.h"
#include "launch/job.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

class LeadLink : public AgentLink {
 public:
  // `lines`: to the nodes from 1 on, in order. `next_port` gives the port of the group's next start.
  LeadLink(Job job, std::vector<AgentLine> lines, std::function<int()> next_port);

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
  enum class Told { nothing, settle, signal };  // how far the nodes have been told to stop

  void hear(int node);    // takes what came from it
  void look_after_all();  // once a second
  void take(int node, const AgentMail& mail);
  void take_finished(int node, LocalEnd end);
  enum class Lost { as_failure, as_consequence };
  void lose(int node, const std::string& reason, Lost how = Lost::as_failure);
  void give_up_on(int node, const std::string& reason, Lost how = Lost::as_failure);
  void note(const Failure& failure, int signal = 0);  // and has the others stop
  void tell(int node, const AgentMail& mail);
  void judge_when_all_finished();
  Verdict judge();
  bool is_rank_of(int node, int rank) const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  Job job_;
  std::vector<std::optional<AgentLine>> lines_;  // by node; none for node 0 and for lost ones
  std::function<int()> next_port_;
  UniqueFd epoll_;
  int restart_ = 0;
  Clock::time_point look_at_ = Clock::now();  // when all nodes are looked after again

  // Of one start of the group.
  Clock::time_point begin_ = Clock::now();
  std::vector<Failure> failures_;  // in the order in which they were heard of
  LocalEnd ends_;                  // of all nodes that have finished
  std::vector<bool> finished_;     // by node
  Told told_ = Told::nothing;
  Clock::time_point end_by_{};  // once they were told
  std::optional<Order> order_;  // for this node
  std::optional<Verdict> verdict_;
};

}  // namespace lockstep::launcher
