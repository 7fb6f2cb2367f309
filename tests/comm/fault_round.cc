#include "comm/fault_round.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <iostream>
#include <thread>

namespace lockstep::testing {
namespace {

constexpr std::chrono::seconds kInitTimeout{2};
constexpr std::chrono::seconds kHang{20};

Deadline hang() { return Deadline::after(kHang * slowness()); }

bool listens(std::uint16_t port) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(port);
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&there), sizeof there) == 0;
}

}  // namespace

std::set<std::string> names_in(const std::filesystem::path& dir) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error))
    names.insert(entry.path().filename());
  return names;
}

void Round::run() {
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
  if (settings_.wires()) {
    EXPECT_FALSE(listens(port_)) << "somebody still listens at port " << port_;
  }
  if (::testing::Test::HasFailure() || late()) show();
}

ProcessRanks::Options Round::options() const {
  ProcessRanks::Options options;
  options.size = plan_.size;
  options.arguments = {"--worker", std::to_string(settings_.seed), std::to_string(number_)};
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
                         {"LOCKSTEP_ENGINE", settings_.engine}};
  if (settings_.wires()) {
    const int pretended = std::max(plan_.node_size, 2);
    const int nodes = settings_.engine == "shm+tcp" ? pretended : plan_.node_size;
    options.environment.insert(options.environment.end(), {{"MASTER_ADDR", "127.0.0.1"},
                                                           {"MASTER_PORT", std::to_string(port_)},
                                                           {"LOCKSTEP_SECRET", std::string(64, '7')},
                                                           {"LOCKSTEP_TLS", number_ % 2 == 0 ? "on" : "off"},
                                                           {"LOCKSTEP_NODE_SIZE", std::to_string(nodes)}});
  }
  return options;
}

std::chrono::seconds Round::init_timeout() const {
  return plan_.fault == Fault::killed_in_init ? kInitTimeout * slowness() : std::chrono::seconds(60);
}

void Round::show() const {
  for (int r = 0; r < plan_.size; ++r)
    for (const std::string& line : ranks_.lines(r)) std::cout << "rank " << r << ": " << line << "\n";
}

bool Round::said(int rank, const std::string& start) const {
  return std::any_of(ranks_.lines(rank).begin(), ranks_.lines(rank).end(),
                     [&](const auto& line) { return line.starts_with(start); });
}

bool Round::speaks(int rank) const {
  return !plan_.is_victim(rank) || plan_.fault == Fault::stopped || plan_.fault == Fault::mismatched;
}

bool Round::from_outside() const {
  return plan_.fault != Fault::died_of_itself && plan_.fault != Fault::exited && plan_.fault != Fault::left &&
         plan_.fault != Fault::mismatched;
}

void Round::inject() {
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

bool Round::hear_everybody() {
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

std::string Round::unheard() const {
  std::string text = "not heard of:";
  for (int r = 0; r < plan_.size; ++r)
    if (speaks(r) && !said(r, "done"))
      text += " rank " + std::to_string(r) + " (process " + std::to_string(ranks_.pid(r)) +
              ", last said: " + (ranks_.lines(r).empty() ? "nothing" : ranks_.lines(r).back()) + ")";
  return text;
}

}  // namespace lockstep::testing
