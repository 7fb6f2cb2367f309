// Private memory that the kernel reads for other ranks (comm/shm/pages.h): whether it does, and reading it.
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "comm/engine/shm_engine.h"
#include "comm/shm/pages.h"

namespace lockstep {

// Two rounds: where everybody's word lies and what it says; then who could not read whose.
void ShmEngine::try_pages(std::chrono::milliseconds timeout) {
  if (size() == 1) return;
  Call call;
  call.what = Collective::barrier;
  call.purpose = "trying to read each other's memory";
  call.timeout = timeout;
  // Another process of the same number, in another pid namespace, has not this in this place.
  const auto word = std::make_unique<std::int64_t>(now_ns());
  std::string why_not;
  const auto try_it = [&] {
    gather(call, nullptr, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(word.get())), *word);
    std::int64_t refused = -1;
    int error = 0;
    for (int r = 0; r < size() && refused < 0; ++r) {
      if (r == rank()) continue;
      std::int64_t got = 0;
      error = shm::read_pages(peer_pid(r), reinterpret_cast<const void*>(descriptor(r).payload[0]),
                              std::as_writable_bytes(std::span(&got, 1)));
      if (error != 0 || got != descriptor(r).payload[1]) refused = r;
    }
    gather(call, nullptr, refused, error);
    for (int r = size() - 1; r >= 0; --r)
      if (const auto whose = static_cast<int>(descriptor(r).payload[0]); whose >= 0)
        why_not = meeting_.named(r) + " can't read the memory of " + meeting_.named(whose) + " (process " +
                  std::to_string(peer_pid(whose)) +
                  "): " + shm::why_no_pages(static_cast<int>(descriptor(r).payload[1]));
  };
  guard(call, [&] { during(call, try_it); });
  settle_pages(std::move(why_not));
}

void ShmEngine::try_own_pages() {
  const std::int64_t word = 1;
  std::int64_t got = 0;
  const int error = shm::read_pages(::getpid(), &word, std::as_writable_bytes(std::span(&got, 1)));
  settle_pages(got == word ? "" : "this process can't read its own memory: " + shm::why_no_pages(error));
}

void ShmEngine::settle_pages(std::string why_not) {
  declare(std::move(why_not));
  const Algorithm* const forced = find_algorithm(selector_.forced());
  if (forced != nullptr && forced->needs().pages && !no_pages_.empty())
    throw UsageError("LOCKSTEP_ALGORITHM asks for " + std::string(forced->name()) +
                     ", which can't run here: " + no_pages_ + "; unset it, and another algorithm is chosen");
}

// By the first byte: what kind of memory it is shows there.
bool ShmEngine::readable(const Call& call) const {
  std::byte first{};
  for (const void* data : {call.in, static_cast<const void*>(call.out == call.in ? nullptr : call.out)})
    if (call.count > 0 && size() > 1 && data != nullptr && !reaches(data) &&
        shm::read_pages(::getpid(), data, {&first, 1}) == EFAULT)
      return false;
  return true;
}

void ShmEngine::read_from(int rank, std::uint64_t address, std::span<std::byte> to) {
  const int error = shm::read_pages(peer_pid(rank), reinterpret_cast<const void*>(address), to);
  if (error != 0) unread(rank, error);
}

void ShmEngine::unread(int rank, int error) {
  // Its process is gone: whoever watches the peers is about to say so.
  if (error == ESRCH) meeting_.wait_until([] { return false; }, [&] { return std::vector<int>{rank}; });
  // A peer that gave up said so before it let go of its memory. One that the kernel kills for want of memory
  // loses that first and ends then: give the news of it a moment.
  constexpr std::chrono::milliseconds kNewsOfDeath{1000};
  constexpr std::chrono::milliseconds kPollInterval{1};
  for (const Deadline news = Deadline::after(kNewsOfDeath); !news.passed();) {
    meeting_.check();
    std::this_thread::sleep_for(kPollInterval);
  }
  throw SystemError(meeting_.named(this->rank()) + " can't read the buffers of " + meeting_.named(rank) +
                        " (process " + std::to_string(peer_pid(rank)) + ") in " + meeting_.where() +
                        "; another algorithm than pages copies them",
                    error);
}

}  // namespace lockstep
