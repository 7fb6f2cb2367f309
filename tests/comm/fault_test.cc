// Kills, stops and confuses ranks at random points, and asks every survivor what it saw: the right typed
// error, within a second, sticky; and nothing left behind.
//
//   fault_test [--rounds N] [--first N] [--seed S] [--engine shm|tcp|shm+tcp]
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <thread>

#include "base/free_port.h"
#include "comm/fault_plan.h"
#include "comm/fault_worker.h"
#include "comm/process_ranks.h"
#include "lockstep/observe/flight_dump.h"

namespace lockstep::testing {
namespace {

// A variable by which the workers of this run of the test are known, also those that outlive what started them.
constexpr const char* kMark = "FAULT_TEST_RUN";

struct Settings {
  std::uint64_t seed = 1;
  int first = 0;
  int rounds = 66;
  std::string engine = "shm";
  bool wires() const { return engine != "shm"; }
};
Settings settings;

constexpr std::chrono::seconds kNotice{1};  // a fault is noticed by all within this
constexpr std::chrono::milliseconds kAtOnce{50};
constexpr std::chrono::seconds kInitTimeout{2};
constexpr std::chrono::seconds kHang{20};

// Where ranks of several nodes wait for each other, those that miss one of their own node speak first.
constexpr std::chrono::seconds kNodesGrace{2};

struct Figures {
  int rounds = 0;
  std::vector<double> latency_ms;  // of every survivor
};

std::set<std::string> names_in(const std::filesystem::path& dir) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error))
    names.insert(entry.path().filename());
  return names;
}

// A folder of its own, gone with the object.
struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-fault-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder");
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

bool listens(std::uint16_t port) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(port);
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&there), sizeof there) == 0;
}

class Round {
 public:
  Round(int number, Figures& figures)
      : number_(number), plan_(plan_of(settings.seed, number)), figures_(figures), ranks_(options()) {}

  void run() {
    ++figures_.rounds;
    inject();
    if (::testing::Test::HasFatalFailure()) return show();
    ASSERT_TRUE(hear_everybody()) << unheard();
    ranks_.let_go();
    ASSERT_TRUE(ranks_.listen([&] { return ranks_.all_ended(); }, hang())) << "a rank did not end";
    for (int r = 0; r < plan_.size; ++r) check_end(r);
    for (int r = 0; r < plan_.size; ++r)
      if (speaks(r)) check_rank(r);
    check_dumps();
    if (settings.wires()) {
      EXPECT_FALSE(listens(port_)) << "somebody still listens at port " << port_;
    }
    if (::testing::Test::HasFailure()) show();
  }

 private:
  static Deadline hang() { return Deadline::after(kHang * slowness()); }

  ProcessRanks::Options options() const {
    ProcessRanks::Options options;
    options.size = plan_.size;
    options.arguments = {"--worker", std::to_string(settings.seed), std::to_string(number_)};
    options.job = "fault-" + std::to_string(::getpid()) + "-" + std::to_string(number_);
    options.environment = {{kMark, std::to_string(::getpid())},
                           {"LOCKSTEP_DUMP_DIR", dumps_.path.string()},
                           {"LOCKSTEP_CACHE_DIR", "off"},
                           {"LOCKSTEP_ARENA", "256M"},
                           {"LOCKSTEP_LOG", "error"},
                           {"LOCKSTEP_INIT_TIMEOUT_S", std::to_string(init_timeout().count())},
                           {"LOCKSTEP_NODE_SIZE", std::to_string(plan_.node_size)},
                           // A crash is to be a plain death here.
                           {"ASAN_OPTIONS", "handle_segv=0:handle_abort=0"},
                           {"TSAN_OPTIONS", "handle_segv=0:handle_abort=0:atexit_sleep_ms=0"},
                           {"LOCKSTEP_ENGINE", settings.engine}};
    if (settings.wires()) {
      const int pretended = std::max(plan_.node_size, 2);
      const int nodes = settings.engine == "shm+tcp" ? pretended : plan_.node_size;
      options.environment.insert(options.environment.end(),
                                 {{"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", std::to_string(port_)},
                                  {"LOCKSTEP_SECRET", std::string(64, '7')},
                                  {"LOCKSTEP_TLS", number_ % 2 == 0 ? "on" : "off"},
                                  {"LOCKSTEP_NODE_SIZE", std::to_string(nodes)}});
    }
    return options;
  }

  std::chrono::seconds init_timeout() const {
    return plan_.fault == Fault::killed_in_init ? kInitTimeout * slowness() : std::chrono::seconds(60);
  }

  void show() const {
    for (int r = 0; r < plan_.size; ++r)
      for (const std::string& line : ranks_.lines(r)) std::cout << "rank " << r << ": " << line << "\n";
  }

  bool said(int rank, const std::string& start) const {
    return std::any_of(ranks_.lines(rank).begin(), ranks_.lines(rank).end(),
                       [&](const auto& line) { return line.starts_with(start); });
  }

  // Will this rank report an error in the end?
  bool speaks(int rank) const {
    return !plan_.is_victim(rank) || plan_.fault == Fault::stopped || plan_.fault == Fault::mismatched;
  }

  bool from_outside() const {
    return plan_.fault != Fault::died_of_itself && plan_.fault != Fault::exited &&
           plan_.fault != Fault::left && plan_.fault != Fault::mismatched;
  }

  void inject() {
    start_ns_ = now_ns();
    if (plan_.fault != Fault::killed_in_init) {
      const auto all_ready = [&] {
        for (int r = 0; r < plan_.size; ++r)
          if (!said(r, "ready")) return false;
        return true;
      };
      // Those that fault of themselves may be gone by now.
      const auto enough = [&] { return from_outside() ? all_ready() : true; };
      ASSERT_TRUE(ranks_.listen(enough, hang())) << "not all ranks came to be ready: " << unheard();
    }
    if (!from_outside()) return;
    std::this_thread::sleep_for(plan_.delay);
    fault_ns_ = now_ns();
    for (int victim : plan_.victims)
      ranks_.signal(victim, plan_.fault == Fault::stopped ? SIGSTOP : plan_.signal);
  }

  bool hear_everybody() {
    const auto heard = [&](bool victims_too) {
      for (int r = 0; r < plan_.size; ++r)
        if (speaks(r) && (victims_too || !plan_.is_victim(r)) && !said(r, "done")) return false;
      return true;
    };
    if (plan_.fault == Fault::stopped) {
      const bool all = ranks_.listen([&] { return heard(false); }, hang());
      for (int victim : plan_.victims) ranks_.signal(victim, SIGCONT);
      if (!all) return false;
    }
    return ranks_.listen([&] { return heard(true); }, hang());
  }

  std::string unheard() const {
    std::string text = "not heard of:";
    for (int r = 0; r < plan_.size; ++r)
      if (speaks(r) && !said(r, "done"))
        text += " rank " + std::to_string(r) + " (process " + std::to_string(ranks_.pid(r)) +
                ", last said: " + (ranks_.lines(r).empty() ? "nothing" : ranks_.lines(r).back()) + ")";
    return text;
  }

  void check_end(int rank) const {
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

  // When the fault was committed, by whoever did.
  std::int64_t fault_time() const {
    if (from_outside()) return fault_ns_;
    for (int victim : plan_.victims)
      for (const std::string& line : ranks_.lines(victim))
        if (line.starts_with("fault ")) return std::stoll(line.substr(6));
    ADD_FAILURE() << "the victim never committed its fault";
    return now_ns();
  }

  void check_rank(int rank) {
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
      if (report.group == "init" && (report.kind == ErrorKind::timeout || settings.wires())) continue;
      check_latency(rank, report, first);
      first = false;
    }
  }

  void check_error(int rank, const Report& report) const {
    EXPECT_EQ(report.sticky, "same");
    EXPECT_LT(report.sticky_ns, std::chrono::nanoseconds(kAtOnce).count() * slowness());
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
    const bool asked = settings.wires() && plan_.fault != Fault::mismatched &&
                       report.kind == ErrorKind::mismatch &&
                       report.text.find("called barrier()") != std::string::npos;
    if (asked) return;
    if (plan_.fault == Fault::stopped) {
      EXPECT_EQ(report.kind, ErrorKind::timeout);
      EXPECT_FALSE(report.missing.empty());
      // Whoever is missing may itself be held up by the victim, in another group: it says so there.
      for (int missing : report.missing)
        EXPECT_TRUE(plan_.is_victim(missing) || held_up(missing, report.group, plan_.size) ||
                    (plan_.is_victim(rank) && said(missing, "error\t")))
            << "rank " << missing << " is missing, and not because of rank " << plan_.victims[0];
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
  bool held_up(int rank, const std::string& group, int steps) const {
    if (steps == 0) return false;
    for (const std::string& line : ranks_.lines(rank)) {
      if (!line.starts_with("error\t")) continue;
      const Report other = parse_report(line);
      if (other.group == group) continue;
      if (settings.wires()) return true;
      if (other.kind != ErrorKind::timeout) continue;
      for (int missing : other.missing)
        if (plan_.is_victim(missing) || held_up(missing, other.group, steps - 1)) return true;
    }
    return false;
  }

  // Over wires the ranks meet in several steps; who failed in an earlier one is missed in the next.
  bool gave_up(int rank) const { return settings.wires() && said(rank, "error\tinit\t"); }

  // A rank that never came can only be missed; one that came and went is known.
  void check_init_error(const Report& report) const {
    ASSERT_EQ(plan_.fault, Fault::killed_in_init);
    const auto waited = std::chrono::nanoseconds(report.thrown_ns - start_ns_);
    EXPECT_LT(waited, init_timeout() + kNotice * slowness());
    if (report.kind == ErrorKind::peer) {
      EXPECT_TRUE(plan_.is_victim(report.peer) || gave_up(report.peer)) << "blames rank " << report.peer;
      return;
    }
    EXPECT_EQ(report.kind, ErrorKind::timeout);
    ASSERT_FALSE(report.missing.empty()) << "names nobody";
    // Rank 0 has given up when a late rank comes, which then misses rank 0.
    EXPECT_TRUE(std::all_of(report.missing.begin(), report.missing.end(),
                            [&](int r) { return r == 0 || plan_.is_victim(r) || gave_up(r); }));
  }

  void check_latency(int rank, const Report& report, bool first) {
    std::int64_t since = fault_time();
    if (plan_.fault == Fault::stopped) {
      if (plan_.is_victim(rank)) return;  // it saw what it saw when it could
      since += std::chrono::nanoseconds(plan_.timeout).count();
    }
    if (plan_.fault == Fault::stopped && settings.engine == "shm+tcp")
      since += std::chrono::nanoseconds(kNodesGrace).count();
    const std::int64_t latency = report.thrown_ns - since;
    EXPECT_LT(latency, std::chrono::nanoseconds(kNotice).count() * slowness());
    if (first) figures_.latency_ms.push_back(std::max(0.0, static_cast<double>(latency) * 1e-6));
  }

  // What a dump says of this rank if it may be the reason; none: it may not.
  std::optional<std::string> told_of(int rank) const {
    const std::string who = "\\brank " + std::to_string(rank);
    if (plan_.fault == Fault::stopped && held_up(rank, "world", plan_.size)) return who + "\\b";
    if (plan_.fault == Fault::killed_in_init && gave_up(rank)) return who + "\\b";
    if (!plan_.is_victim(rank)) return std::nullopt;
    if (plan_.fault == Fault::stopped) return who + "\\b";
    if (plan_.fault == Fault::mismatched) return who + " called ";
    if (plan_.fault == Fault::left) return who + " left ";
    return who + "( of group \\S+)? died";
  }

  void check_dumps() const {
    for (const auto& name : names_in(dumps_.path)) {
      SCOPED_TRACE("dump " + name);
      EXPECT_TRUE(name.starts_with("flight-") && name.ends_with(".json")) << "left behind";
      if (!name.ends_with(".json")) continue;
      FlightDump dump;
      ASSERT_NO_THROW(dump = read_flight_dump(dumps_.path / name));
      // Who is stopped looks like who is slow, and calls that differ by the algorithm asked for look alike:
      // there only the message tells. Over wires only the own calls are known.
      const bool by_message =
          plan_.fault == Fault::stopped || plan_.fault == Fault::mismatched || settings.wires();
      std::string text = by_message ? dump.error_message + "\n" : "";
      for (const std::string& sentence : summary(dump)) text += sentence + "\n";
      if (dump.group != "world") continue;  // its ranks are numbered otherwise
      if (settings.wires() && plan_.fault != Fault::mismatched && dump.error_kind == ErrorKind::mismatch)
        continue;
      bool named = false;
      for (int r = 0; r < plan_.size; ++r)
        if (const auto told = told_of(r)) named |= std::regex_search(text, std::regex(*told));
      EXPECT_TRUE(named) << "the summary does not say who it was: " << text;
    }
    for (int r = 0; r < plan_.size; ++r) {
      if (!said(r, "error\tworld\t")) continue;
      EXPECT_TRUE(std::filesystem::exists(dumps_.path / flight_dump_name("world", r)))
          << "rank " << r << " left no dump";
    }
  }

  int number_;
  Plan plan_;
  std::uint16_t port_ = free_port();  // where rank 0 listens, over wires
  Figures& figures_;
  Folder dumps_;
  ProcessRanks ranks_;
  std::int64_t start_ns_ = 0;
  std::int64_t fault_ns_ = 0;
};

// Workers of this run that map one of our arenas.
int arenas_mapped() {
  const std::string mark = std::string(kMark) + "=" + std::to_string(::getpid()) + '\0';
  int found = 0;
  for (const std::string& name : names_in("/proc")) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream environment("/proc/" + name + "/environ", std::ios::binary);
    std::string variables((std::istreambuf_iterator<char>(environment)), {});
    if (variables.find(mark) == std::string::npos) continue;
    std::ifstream maps("/proc/" + name + "/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find("/memfd:lockstep") != std::string::npos) {
        ++found;
        break;
      }
  }
  return found;
}

void print(const std::map<Fault, Figures>& all) {
  std::cout << "fault             rounds  reports  median ms  worst ms\n";
  int rounds = 0;
  for (auto [fault, figures] : all) {
    auto& ms = figures.latency_ms;
    std::sort(ms.begin(), ms.end());
    rounds += figures.rounds;
    char line[128];
    std::snprintf(line, sizeof line, "%-16s %7d %8zu %10.1f %9.1f\n", to_string(fault), figures.rounds,
                  ms.size(), ms.empty() ? 0.0 : ms[ms.size() / 2], ms.empty() ? 0.0 : ms.back());
    std::cout << line;
  }
  std::cout << "in all " << rounds << " rounds\n";
}

TEST(Fault, EverySurvivorGetsTheRightErrorAndNothingIsLeft) {
  std::map<Fault, Figures> figures;
  ASSERT_GT(settings.rounds, 0);
  for (int round = settings.first; round < settings.first + settings.rounds; ++round) {
    const Plan plan = plan_of(settings.seed, round);
    SCOPED_TRACE("--engine " + settings.engine + " --seed " + std::to_string(settings.seed) + " --first " +
                 std::to_string(round) + " --rounds 1: rank " + std::to_string(plan.victims[0]) + " of " +
                 std::to_string(plan.size) + " " + to_string(plan.fault));
    Round(round, figures[plan.fault]).run();
    if (HasFatalFailure()) break;
  }
  print(figures);
  for (const std::string& segment : names_in("/dev/shm"))
    EXPECT_EQ(segment.find("lockstep"), std::string::npos) << "left behind: " << segment;
  EXPECT_EQ(arenas_mapped(), 0);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using lockstep::testing::settings;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "--worker")
    return lockstep::testing::fault_worker(std::stoull(words[1]), std::stoi(words[2]));
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--seed") {
      settings.seed = std::stoull(value);
    } else if (flag == "--first") {
      settings.first = std::stoi(value);
    } else if (flag == "--rounds") {
      settings.rounds = std::stoi(value);
    } else if (flag == "--engine") {
      settings.engine = value;
    } else {
      std::cerr << "fault_test: unknown flag " << flag << "\n";
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
