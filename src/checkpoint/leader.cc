#include "lockstep/checkpoint/leader.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <system_error>
#include <vector>

#include "base/start_thread.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kLongestRound{250};

// What the leader says at a meeting.
enum class News : std::uint8_t { busy, done, refused, failed };

News tell(const Group& group, News news) {
  std::vector<std::uint8_t> said = {static_cast<std::uint8_t>(news)};
  group.broadcast(said, 0);
  return static_cast<News>(said[0]);
}

// Where no thread can be had, the work fails.
std::future<void> start(const std::function<void()>& work) {
  try {
    return std::async(std::launch::async, work);
  } catch (const std::system_error& error) {
    std::promise<void> failed;
    failed.set_exception(std::make_exception_ptr(SystemError(no_thread("a thread", error))));
    return failed.get_future();
  }
}

void lead(const Group& group, const std::string& what, const std::function<void()>& work) {
  const auto timeout = group.timeout();
  const auto round = std::min(kLongestRound, timeout / 4);
  const Deadline expected = Deadline::after(timeout);
  bool logged = false;
  // Its destructor waits for the work, also when a peer is lost meanwhile.
  std::future<void> through = start(work);
  while (through.wait_for(round) != std::future_status::ready) {
    if (!logged && expected.passed()) {
      log().warn("rank 0 is still {} after {} s; the others wait", what, timeout.count() / 1000);
      logged = true;
    }
    tell(group, News::busy);
  }
  const auto explain = [&](News news, const char* message) {
    tell(group, news);
    std::string text = message;
    group.broadcast(text, 0);
  };
  try {
    through.get();
  } catch (const UsageError& error) {
    explain(News::refused, error.what());
    throw;
  } catch (const std::exception& error) {
    explain(News::failed, error.what());
    throw;
  } catch (...) {
    explain(News::failed, "rank 0 failed in a way that it can't tell");
    throw;
  }
  tell(group, News::done);
}

void follow(const Group& group) {
  News news = News::busy;
  while (news == News::busy) news = tell(group, News::busy);
  if (news == News::done) return;
  std::string message;
  group.broadcast(message, 0);
  if (news == News::refused) throw UsageError(message);
  throw SystemError(message);
}

}  // namespace

void run_on_all(const Group& group, const std::string& what, const std::function<void()>& work) {
  const auto timeout = group.timeout();
  const auto round = std::min(kLongestRound, timeout / 4);
  const Deadline expected = Deadline::after(timeout);
  bool logged = false;
  std::future<void> through = start(work);
  News mine = News::busy;
  std::string message;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(group.size()));
  do {
    if (mine == News::busy && through.wait_for(round) == std::future_status::ready) {
      try {
        through.get();
        mine = News::done;
      } catch (const UsageError& error) {
        mine = News::refused;
        message = error.what();
      } catch (const std::exception& error) {
        mine = News::failed;
        message = error.what();
      } catch (...) {
        mine = News::failed;
        message = group.named(group.rank()) + " failed in a way that it can't tell";
      }
    }
    if (mine == News::busy && !logged && expected.passed()) {
      log().warn("rank {} is still {} after {} s; the others wait", group.rank(), what,
                 timeout.count() / 1000);
      logged = true;
    }
    group.all_gather(std::vector{static_cast<std::uint8_t>(mine)}, all);
  } while (std::ranges::count(all, static_cast<std::uint8_t>(News::busy)) > 0);
  const auto wrong = std::ranges::find_if(all, [](std::uint8_t news) {
    return static_cast<News>(news) == News::refused || static_cast<News>(news) == News::failed;
  });
  if (wrong == all.end()) return;
  group.broadcast(message, static_cast<int>(wrong - all.begin()));
  if (static_cast<News>(*wrong) == News::refused) throw UsageError(message);
  throw SystemError(message);
}

void run_on_leader(const Group& group, const std::string& what, const std::function<void()>& work) {
  if (group.rank() == 0)
    lead(group, what, work);
  else
    follow(group);
}

}  // namespace lockstep
