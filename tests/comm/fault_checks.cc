// What each rank of a round must have seen: the right typed error, in time, sticky, and in its dump.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "comm/fault_round.h"
#include "lockstep/observe/flight_dump.h"

namespace lockstep::testing {
namespace {

constexpr std::chrono::seconds kNotice{1};  // a fault is noticed by all within this
constexpr std::chrono::seconds kPeersPatience{
    2};  // of a rank that gives up, for one that is not out of the call
constexpr std::chrono::milliseconds kAtOnce{50};
// Where ranks of several nodes wait for each other, those that miss one of their own node speak first.
constexpr std::chrono::seconds kNodesGrace{2};

}  // namespace

void Round::expect_in_time(bool in_time, const std::string& what) {
  if (!in_time && how_late_.empty()) how_late_ = what;
}

void Round::check_end(int rank) const {
  const int status = *ranks_.status(rank);
  if (!plan_.is_victim(rank) || !plan_.ends_process()) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << " ended with status " << status;
  } else if (plan_.fault == Fault::exited) {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3)
        << "rank " << rank << " ended with status " << status;
  } else {
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == plan_.signal)
        << "rank " << rank << " ended with status " << status;
  }
}

std::int64_t Round::fault_time() const {
  if (from_outside()) return fault_ns_;
  for (int victim : plan_.victims)
    for (const std::string& line : ranks_.lines(victim))
      if (line.starts_with("fault ")) return std::stoll(line.substr(6));
  ADD_FAILURE() << "the victim never committed its fault";
  return now_ns();
}

void Round::check_rank(int rank) {
  bool first = true;
  for (const std::string& line : ranks_.lines(rank)) {
    SCOPED_TRACE("rank " + std::to_string(rank) + " said: " + line);
    if (!line.starts_with("error\t")) {
      EXPECT_TRUE(line == "ready" || line == "done" || line.starts_with("fault ")) << "what is this?";
      continue;
    }
    const Report report = parse_report(line);
    if (report.group == "init")
      check_init_error(report);
    else
      check_error(rank, report);
    // Its time is the timeout's; who dials a dead rank, too, tries until then.
    if (report.group == "init" && (report.kind == ErrorKind::timeout || settings_.wires())) continue;
    check_latency(rank, report, first);
    first = false;
  }
}

void Round::check_error(int rank, const Report& report) {
  EXPECT_EQ(report.sticky, "same");
  expect_in_time(report.sticky_ns < std::chrono::nanoseconds(kAtOnce).count() * slowness(),
                 "rank " + std::to_string(rank) + " was not told again at once");
  // Survivors that saw the fault in the world left their part: a peer there that had not seen it yet now
  // does, and asks the world.
  const bool left_part = report.group != "world" && report.kind == ErrorKind::peer &&
                         report.text.find(" left group ") != std::string::npos;
  if (left_part && !plan_.is_victim(report.peer)) {
    EXPECT_TRUE(said(rank, "error\tworld\t"));
    return;
  }
  // A survivor that missed the victim in its part asks the world with a barrier, and the others, who have
  // not come to need the victim yet, see that first.
  const bool asked = settings_.wires() && plan_.fault != Fault::mismatched &&
                     report.kind == ErrorKind::mismatch &&
                     report.text.find("called barrier()") != std::string::npos;
  if (asked) return;
  if (plan_.fault == Fault::stopped) {
    EXPECT_EQ(report.kind, ErrorKind::timeout);
    EXPECT_FALSE(report.missing.empty());
    // Whoever is missing may itself be held up by the victim, in another group: it says so there.
    for (int missing : report.missing)
      expect_in_time(plan_.is_victim(missing) || held_up(missing, report.group, plan_.size) ||
                         (plan_.is_victim(rank) && said(missing, "error\t")),
                     "rank " + std::to_string(missing) + " is missing, and not because of rank " +
                         std::to_string(plan_.victims[0]));
  } else if (plan_.fault == Fault::mismatched) {
    EXPECT_EQ(report.kind, ErrorKind::mismatch);
    const std::string who = "rank " + std::to_string(plan_.victims[0]) + " called ";
    EXPECT_NE(report.text.find(who), std::string::npos)
        << "it does not say what rank " << plan_.victims[0] << " called";
    EXPECT_NE(report.text.find("called different things"), std::string::npos);
  } else {
    EXPECT_EQ(report.kind, ErrorKind::peer);
    EXPECT_TRUE(plan_.is_victim(report.peer) || gave_up(report.peer))
        << "the survivor " << rank << " blames rank " << report.peer;
  }
}

// Did it wait for somebody in another group than `group`? Over wires it may hear there of what came of its
// absence here before its own time is over, so that any error will do, and a rank that was stopped misses
// those that have given it up; else it names the victim, perhaps by way of others.
bool Round::held_up(int rank, const std::string& group, int steps) const {
  if (steps == 0) return false;
  for (const std::string& line : ranks_.lines(rank)) {
    if (!line.starts_with("error\t")) continue;
    const Report other = parse_report(line);
    if (other.group == group) continue;
    if (settings_.wires()) return true;
    if (other.kind != ErrorKind::timeout) continue;
    for (int missing : other.missing)
      if (plan_.is_victim(missing) || held_up(missing, other.group, steps - 1)) return true;
  }
  return false;
}

// Over wires the ranks meet in several steps; who failed in an earlier one is missed in the next.
bool Round::gave_up(int rank) const { return settings_.wires() && said(rank, "error\tinit\t"); }

// A rank that never came can only be missed; one that came and went is known.
void Round::check_init_error(const Report& report) {
  ASSERT_EQ(plan_.fault, Fault::killed_in_init);
  const auto waited = std::chrono::nanoseconds(report.thrown_ns - start_ns_);
  expect_in_time(waited < init_timeout() + kNotice * slowness(), "somebody waited too long in init()");
  if (report.kind == ErrorKind::peer) {
    EXPECT_TRUE(plan_.is_victim(report.peer) || gave_up(report.peer)) << "blames rank " << report.peer;
    return;
  }
  EXPECT_EQ(report.kind, ErrorKind::timeout);
  ASSERT_FALSE(report.missing.empty()) << "names nobody";
  // When rank 0, with whom all ranks meet, has given up, one that comes late misses it.
  EXPECT_TRUE(std::all_of(report.missing.begin(), report.missing.end(), [&](int r) {
    return plan_.is_victim(r) || gave_up(r) || (r == 0 && said(0, "error\tinit\t"));
  }));
}

void Round::check_latency(int rank, const Report& report, bool first) {
  std::int64_t since = fault_time();
  if (plan_.fault == Fault::stopped) {
    if (plan_.is_victim(rank)) return;  // it saw what it saw when it could
    // The victim may stand in the middle of its peers' memory.
    since += std::chrono::nanoseconds(plan_.timeout + kPeersPatience).count();
  }
  if (plan_.fault == Fault::stopped && settings_.engine == "shm+tcp")
    since += std::chrono::nanoseconds(kNodesGrace).count();
  const std::int64_t latency = report.thrown_ns - since;
  expect_in_time(
      latency < std::chrono::nanoseconds(kNotice).count() * slowness(),
      "rank " + std::to_string(rank) + " noticed after " + std::to_string(latency / 1'000'000) + " ms");
  if (first) figures_.latency_ms.push_back(std::max(0.0, static_cast<double>(latency) * 1e-6));
}

std::optional<std::string> Round::told_of(int rank) const {
  const std::string who = "\\brank " + std::to_string(rank);
  if (plan_.fault == Fault::stopped && held_up(rank, "world", plan_.size)) return who + "\\b";
  if (plan_.fault == Fault::killed_in_init && gave_up(rank)) return who + "\\b";
  if (!plan_.is_victim(rank)) return std::nullopt;
  if (plan_.fault == Fault::stopped) return who + "\\b";
  if (plan_.fault == Fault::mismatched) return who + " called ";
  if (plan_.fault == Fault::left) return who + " left ";
  return who + "( of group \\S+)? died";
}

void Round::check_dumps() const {
  for (const auto& name : names_in(dumps_.path)) {
    SCOPED_TRACE("dump " + name);
    EXPECT_TRUE(name.starts_with("flight-") && name.ends_with(".json")) << "left behind";
    if (!name.ends_with(".json")) continue;
    FlightDump dump;
    ASSERT_NO_THROW(dump = read_flight_dump(dumps_.path / name));
    // Who is stopped looks like who is slow, and calls that differ by the algorithm asked for look alike:
    // there only the message tells. Over wires only the own calls are known.
    const bool by_message =
        plan_.fault == Fault::stopped || plan_.fault == Fault::mismatched || settings_.wires();
    std::string text = by_message ? dump.error_message + "\n" : "";
    for (const std::string& sentence : summary(dump)) text += sentence + "\n";
    if (dump.group != "world") continue;  // its ranks are numbered otherwise
    if (settings_.wires() && plan_.fault != Fault::mismatched && dump.error_kind == ErrorKind::mismatch)
      continue;
    bool named = false;
    for (int r = 0; r < plan_.size; ++r)
      if (const auto told = told_of(r)) named |= std::regex_search(text, std::regex(*told));
    // Where a survivor that was late is missing the dump names that one, and the round is repeated.
    const bool other_missing = late() && plan_.fault == Fault::stopped;
    EXPECT_TRUE(named || other_missing) << "the summary does not say who it was: " << text;
  }
  for (int r = 0; r < plan_.size; ++r) {
    if (!said(r, "error\tworld\t")) continue;
    EXPECT_TRUE(std::filesystem::exists(dumps_.path / flight_dump_name("world", r)))
        << "rank " << r << " left no dump";
  }
}

}  // namespace lockstep::testing
