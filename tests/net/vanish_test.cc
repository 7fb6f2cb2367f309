// A machine that vanishes, and one that is only slow. The network of a namespace of its own is switched off
// under open connections, so that nothing arrives any more and nobody says so.
#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "net/socket.h"
#include "net/tools.h"

namespace lockstep::net {
namespace {

enum class Network { off, on };
bool set_loopback(Network to) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags =
      static_cast<short>(to == Network::on ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  return ::ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0;
}

enum class Traffic { none, sending };
// Seconds until the stream notices that its peer is gone; -1 when it did not in time.
double seconds_until_lost(Stream& stream, Traffic traffic, std::string& reason) {
  const auto begin = Clock::now();
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const std::vector<std::byte> bytes(10'000);
  std::array<std::byte, 100> buffer;
  bool sent = false;
  try {
    while (since() < 15) {
      if (traffic == Traffic::sending && !sent) {
        send_all(stream, bytes);
        sent = true;
      }
      stream.read(buffer);
      wait_ready(stream.fd(), POLLIN, in(std::chrono::milliseconds(500)));
    }
  } catch (const ConnectionLost& lost) {
    reason = lost.reason;
    return since();
  }
  return -1;
}

constexpr int kNoNamespace = 77;

// In a process of its own, still with one thread. 0: as it should be.
int vanish() {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return kNoNamespace;
  if (!set_loopback(Network::on)) return kNoNamespace;
  Pair idle = connected(Security::plaintext);
  Pair plain = connected(Security::plaintext);
  Pair tls = connected(Security::tls);
  if (!works(*idle.gate, *idle.dialler) || !set_loopback(Network::off)) return 1;
  std::vector<std::jthread> watchers;
  std::atomic<int> wrong = 0;
  const auto watch = [&](Stream& stream, Traffic traffic, const char* what) {
    watchers.emplace_back([&stream, traffic, what, &wrong] {
      std::string reason = "nothing";
      const double after = seconds_until_lost(stream, traffic, reason);
      std::printf("%s: %s after %.1f s\n", what, reason.c_str(), after);
      if (after < 2 || after > kSilenceSeconds + 4 || reason.find("does not answer") == std::string::npos)
        ++wrong;
    });
  };
  watch(*idle.gate, Traffic::none, "idle");
  watch(*plain.gate, Traffic::sending, "sending");
  watch(*tls.gate, Traffic::sending, "sending, TLS");
  watchers.clear();
  std::fflush(stdout);
  return wrong;
}

TEST(Vanished, MachineIsNoticedWhetherBytesAreUnderWayOrNot) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(vanish());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespace)
    GTEST_SKIP() << "this system does not let us make a network namespace";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Vanished, APeerThatDoesNotReadForLongIsNotTakenForOne) {
  Pair pair = connected(Security::plaintext);
  const auto bytes = random_bytes(std::size_t{32} << 20, 1);
  std::jthread sender([&] {
    // As send_all, but asking often, as an owner that waits does.
    Bytes rest = bytes;
    while (!rest.empty()) {
      const std::array<Bytes, 1> parts = {rest};
      const std::size_t sent = pair.dialler->write(parts);
      rest = rest.subspan(sent);
      if (sent == 0) wait_ready(pair.dialler->fd(), POLLOUT, in(std::chrono::milliseconds(100)));
    }
  });
  std::this_thread::sleep_for(std::chrono::seconds(kSilenceSeconds + 1));
  EXPECT_TRUE(receive_all(*pair.gate, bytes.size()) == bytes);
}

}  // namespace
}  // namespace lockstep::net
