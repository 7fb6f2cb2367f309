#include "comm/shm/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/start_thread.h"
#include "lockstep/base/error.h"

namespace lockstep::shm {

Watch::Watch(std::vector<UniqueFd> peers, std::function<void(int rank)> died)
    : peers_(std::move(peers)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw SystemError("cannot make an eventfd", errno);
  thread_ = start_thread("the thread that watches the peers", [this, died = std::move(died)] { run(died); });
}

Watch::~Watch() {
  const std::uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void Watch::run(const std::function<void(int)>& died) {
  std::vector<pollfd> polled;
  std::vector<int> ranks;
  polled.push_back({stop_.get(), POLLIN, 0});
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (!peers_[r]) continue;
    polled.push_back({peers_[r].get(), POLLIN, 0});
    ranks.push_back(static_cast<int>(r));
  }
  for (;;) {
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;  // EINTR
    if (polled[0].revents != 0) return;
    for (std::size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      polled[i].fd = -1;  // poll passes over it from now on
      polled[i].revents = 0;
      died(ranks[i - 1]);
    }
  }
}

}  // namespace lockstep::shm
