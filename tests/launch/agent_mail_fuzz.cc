// Throws texts at the reader of agents' messages. What it takes is written and read again without a change,
// and has no number that the rest of the launcher can't count with; what it refuses it refuses as a lost
// connection.
#include <cmath>
#include <string>

#include "base/fuzz_driver.h"
#include "launch/agent_mail.h"
#include "net/stream.h"

namespace lockstep::launcher {
namespace {

constexpr int kMostRanks = kMostNodes * kMostWorkers;

bool within(int value, int least, int most) { return value >= least && value <= most; }

void check(const WorkerEnd& end) {
  fuzz::require(within(end.rank, 0, kMostRanks - 1) && within(end.node, 0, kMostNodes - 1),
                "a rank out of range");
  fuzz::require(end.pid >= 0 && within(end.signal, 0, 64) && within(end.exit_code, 0, 255),
                "an end that can't be");
  fuzz::require(std::isfinite(end.seconds) && end.seconds >= 0, "a time that can't be");
}

// Ranks follow each other, so that every one is somebody's.
void check(const std::vector<NodeEnd>& nodes) {
  fuzz::require(within(static_cast<int>(nodes.size()), 1, kMostNodes), "a number of nodes that can't be");
  int rank = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    fuzz::require(nodes[i].node == static_cast<int>(i) && nodes[i].first_rank == rank, "nodes out of order");
    fuzz::require(within(nodes[i].workers, 1, kMostWorkers), "a number of workers that can't be");
    rank += nodes[i].workers;
  }
}

struct Checker {
  void operator()(const Join& mail) const { fuzz::require(mail.grace.count() >= 0, "a negative grace"); }
  void operator()(const WorkerFailed& mail) const { check(mail.end); }
  void operator()(const Interrupted& mail) const { fuzz::require(within(mail.signal, 1, 64), "no signal"); }
  void operator()(const Finished& mail) const {
    for (const WorkerEnd& end : mail.end.workers) check(end);
  }
  void operator()(const Welcome& mail) const {
    check(mail.job.nodes);
    fuzz::require(within(mail.job.node, 0, static_cast<int>(mail.job.nodes.size()) - 1),
                  "no node of the job");
    fuzz::require(mail.job.world_size() <= kMostRanks && mail.job.max_restarts >= 0, "a job that can't be");
    fuzz::require(within(mail.job.master_port, 1, 65535), "a port that can't be");
    fuzz::require(mail.job.name.size() == 32 && mail.job.name.find('/') == std::string::npos,
                  "a name that is none");
  }
  void operator()(const Stop& mail) const { fuzz::require(within(mail.order.signal, 0, 64), "no signal"); }
  void operator()(const Verdict& mail) const {
    check(mail.nodes);
    for (const WorkerEnd& end : mail.workers) check(end);
    fuzz::require(within(mail.next_master_port, 0, 65535), "a port that can't be");
    LaunchReport report;
    report.nodes = mail.nodes;
    report.workers = mail.workers;
    report.first_failed = mail.first_failed;
    report.first_failed_node = mail.first_failed_node;
    report.last_lines = mail.last_lines;
    describe(report);  // comes to an end
  }
  void operator()(const Refused&) const {}
  void operator()(const GivenUp&) const {}
  void operator()(const Alive&) const {}
  void operator()(const Paused&) const {}
};

}  // namespace
}  // namespace lockstep::launcher

void lockstep::fuzz::one(std::string_view input) {
  using namespace lockstep::launcher;
  try {
    const AgentMail mail = read_mail(std::string(input));
    std::visit(Checker(), mail);
    const std::string text = write_mail(mail);
    require(write_mail(read_mail(text)) == text, "a message changes");
    accepted = true;
  } catch (const net::ConnectionLost& lost) {
    require(lost.reason.find('\n') == std::string::npos, "a refusal of several lines");
  }
}

std::vector<std::string> lockstep::fuzz::seeds() {
  using namespace lockstep::launcher;
  const std::vector<NodeEnd> nodes = {
      {.node = 0, .host = "a", .workers = 1},
      {.node = 1, .host = "b", .first_rank = 1, .workers = 2, .lost = "went", .interrupted_by = 2}};
  const std::vector<WorkerEnd> workers = {
      {.rank = 0, .pid = 70, .exit_code = 3},
      {.rank = 1, .node = 1, .pid = 77, .signal = 9, .core_dumped = true, .seconds = 1.5}};
  Welcome welcome;
  welcome.job.name = std::string(32, 'e');
  welcome.job.node = 1;
  welcome.job.nodes = nodes;
  welcome.job.master_addr = "10.0.0.1";
  welcome.job.master_port = 29400;
  welcome.job.threads = "4,2";
  const Verdict verdict{.nodes = nodes,
                        .workers = workers,
                        .first_failed = 1,
                        .last_lines = {"one", "two"},
                        .next_master_port = 5};
  const AgentMail all[] = {Join{.nodes = 2, .node = 1, .workers = 3, .host = "h"},
                           WorkerFailed{workers[1]},
                           Interrupted{2},
                           Finished{{.workers = workers, .last_lines = {{1, {"x"}}}}},
                           welcome,
                           Refused{.why = "no", .usage = true},
                           Stop{{.signal = 15}},
                           verdict,
                           GivenUp{"why"},
                           Alive{},
                           Paused{}};
  std::vector<std::string> texts;
  for (const AgentMail& mail : all) texts.push_back(write_mail(mail));
  return texts;
}
