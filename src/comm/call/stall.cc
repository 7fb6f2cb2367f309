#include "comm/call/stall.h"

#include <unistd.h>

#include "lockstep/base/log.h"

namespace lockstep {
namespace {

// Ranks wait for each other all the time; what lasts a second is worth knowing when a job is told to stop.
constexpr std::chrono::milliseconds kWorthADump{1000};
constexpr std::chrono::milliseconds kLookEvery{40};  // well within the time that the launcher gives

}  // namespace

void Stall::on_stop(std::filesystem::path sign, std::function<void()> dump) {
  sign_ = std::move(sign);
  dump_ = std::move(dump);
}

void Stall::look_for_stop(std::int64_t since_ns) {
  if (!dump_) return;
  const std::int64_t now = now_();
  if (now < look_ns_ || now - since_ns < std::chrono::nanoseconds(kWorthADump).count()) return;
  look_ns_ = now + std::chrono::nanoseconds(kLookEvery).count();
  if (::access(sign_.c_str(), F_OK) == 0) std::exchange(dump_, {})();
}

bool Stall::due(std::int64_t since_ns) {
  if (warn_after_.count() == 0) return false;
  if (since_ns != since_ns_) {
    since_ns_ = since_ns;
    next_ns_ = since_ns + warn_after_.count();
  }
  return now_() >= next_ns_;
}

void Stall::say(const Sight& sight) {
  const std::int64_t waited_ns = now_() - since_ns_;
  next_ns_ = since_ns_ + 2 * waited_ns;
  const double seconds = static_cast<double>(waited_ns) * 1e-9;
  log().warn("{} has waited {:.{}f} s for {} in {}", sight.who, seconds, seconds < 9.95 ? 1 : 0, sight.whom,
             sight.where);
}

}  // namespace lockstep
