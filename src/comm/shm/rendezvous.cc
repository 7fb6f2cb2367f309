#include "comm/shm/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/cores.h"
#include "base/seconds_text.h"
#include "comm/call/rank_mask.h"
#include "comm/call/stall.h"
#include "comm/shm/door.h"
#include "comm/shm/message.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

constexpr std::uint32_t kMeetingMagic = 0x4c4b5354;
constexpr std::uint32_t kMeetingVersion = 3;

struct Hello {
  std::uint32_t magic;
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t size;
  std::uint64_t region_bytes;
  CoreMask cores;
};
static_assert(std::is_trivially_copyable_v<Hello>, "it is sent as it lies in memory");
constexpr std::size_t kHeadBytes = offsetof(Hello, rank);  // of a hello of any version

struct Reply {
  std::uint32_t magic;
  std::int32_t kind;  // 0: welcome, else ErrorKind
  std::int32_t rank;  // PeerError's
  std::int32_t cores;
  RankMask missing;  // TimeoutError's
  char text[512];
};

// The arena and everybody's pidfd come with the welcome, and behind it as many times as they need.
struct More {
  std::uint32_t magic;
};

// Connections that have said nothing yet: so many are kept at least, and always as many as there are workers
// and a few. Workers speak at once, but all may have come before the first of them has a core for it.
constexpr std::size_t kKeptSilent = 128;
constexpr int kStrangers = 16;

const char* const kTooFewFiles =
    "the rendezvous needs more open files than the limit allows; raise it (ulimit -n)";

std::string listed(const RankNames& names, const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + names.brief(rank);
  return "rank " + text;
}

UniqueFd own_pidfd() {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!fd)
    throw SystemError(
        errno == ENOSYS ? "cannot open a pidfd (Linux 5.3 or later is needed)" : "cannot open a pidfd",
        errno);
  return fd;
}

CoreMask own_cores() {
  CoreMask cores = allowed_cores();
  if (cores.none()) cores.set(0);
  return cores;
}

Reply reply_of(const Error* error, int cores) {
  Reply reply{};
  reply.magic = kMeetingMagic;
  reply.cores = cores;
  if (error == nullptr) return reply;
  reply.kind = static_cast<std::int32_t>(error->kind());
  if (const auto* peer = dynamic_cast<const PeerError*>(error)) reply.rank = peer->rank();
  if (const auto* timeout = dynamic_cast<const TimeoutError*>(error))
    reply.missing = mask_of(timeout->missing());
  std::strncpy(reply.text, error->what(), sizeof(reply.text) - 1);
  return reply;
}

// ---- rank 0

class Host {
 public:
  explicit Host(const Meet& meet) : meet_(meet), guests_(static_cast<std::size_t>(meet.size)) {}

  Met run() {
    const Deadline deadline = Deadline::after(meet_.timeout);
    listener_ = listen_at(meet_.door, meet_.job, meet_.size + kStrangers);
    try {
      gather(deadline);
      return welcome();
    } catch (const Error& error) {
      const Reply reply = reply_of(&error, 0);
      for (const Guest& guest : guests_)
        if (guest.socket) send_message(guest.socket.get(), &reply, sizeof reply, {});
      // Those that were being heard and those still at the door hear it too, or they would blame rank 0. It
      // is the first that they are sent: there is room for it.
      for (const UniqueFd& socket : speaking_) send_message(socket.get(), &reply, sizeof reply, {});
      for (const UniqueFd& socket : silent_) send_message(socket.get(), &reply, sizeof reply, {});
      for (pollfd door{listener_.get(), POLLIN, 0}; ::poll(&door, 1, 0) > 0;) {
        const UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!socket) break;
        if (same_user(socket.get())) send_message(socket.get(), &reply, sizeof reply, {});
      }
      throw;
    }
  }

 private:
  struct Guest {
    UniqueFd socket;
    UniqueFd pidfd;
  };

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int r = 1; r < meet_.size; ++r)
      if (!guests_[static_cast<std::size_t>(r)].socket) ranks.push_back(r);
    return ranks;
  }

  std::string name_of(int rank) const { return meet_.names.named(rank); }
  std::vector<int> numbers_of(std::vector<int> ranks) const {
    for (int& rank : ranks) rank = meet_.names.number(rank);
    return ranks;
  }

  void gather(const Deadline& deadline) {
    cores_ = own_cores();
    Stall stall(meet_.warn_after);
    const std::int64_t since = now_ns();
    while (!missing().empty()) {
      if (deadline.passed())
        throw TimeoutError(numbers_of(missing()),
                           name_of(0) + " waited " + seconds_text(meet_.timeout) +
                               " for all workers to come; missing: " + listed(meet_.names, missing()) +
                               " (LOCKSTEP_INIT_TIMEOUT_S sets the time)");
      if (stall.due(since)) stall.say({name_of(0), listed(meet_.names, missing()), meet_.call});
      std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
      std::vector<int> ranks{0};
      for (int r = 1; r < meet_.size; ++r) {
        const Guest& guest = guests_[static_cast<std::size_t>(r)];
        if (!guest.socket) continue;
        polled.push_back({guest.socket.get(), POLLIN, 0});
        ranks.push_back(r);
      }
      const std::size_t silent_from = polled.size();
      for (const UniqueFd& socket : silent_) polled.push_back({socket.get(), POLLIN, 0});
      const auto wait = std::min<std::int64_t>(deadline.left().count() / 1'000'000 + 1, 1000);
      if (::poll(polled.data(), polled.size(), static_cast<int>(wait)) <= 0) continue;
      for (std::size_t i = 1; i < silent_from; ++i)
        if (polled[i].revents != 0)
          throw PeerError(meet_.names.number(ranks[i]),
                          name_of(ranks[i]) + " went away while " + name_of(0) + " waited for the others");
      for (std::size_t i = silent_.size(); i-- > 0;) {
        if (polled[silent_from + i].revents == 0) continue;
        speaking_.push_back(std::move(silent_[i]));
        silent_.erase(silent_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      for (; !speaking_.empty(); speaking_.pop_back()) admit(speaking_.back());
      if (polled[0].revents != 0) accept();
    }
  }

  std::size_t most_silent() const {
    return std::max(kKeptSilent, static_cast<std::size_t>(meet_.size + kStrangers));
  }

  void accept() {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket && (errno == EMFILE || errno == ENFILE)) {
      if (silent_.empty()) throw SystemError(kTooFewFiles);
      silent_.erase(silent_.begin());
      return;
    }
    if (!socket || !same_user(socket.get())) return;  // a stranger: not ours to answer
    if (silent_.size() >= most_silent()) silent_.erase(silent_.begin());
    silent_.push_back(std::move(socket));
  }

  // Hears what a connection has to say, and takes it when it is a worker's. What it throws is told to the
  // connection as well, with all others.
  void admit(UniqueFd& socket) {
    Hello hello{};
    std::vector<UniqueFd> fds;
    const Received received = receive_message(socket.get(), &hello, sizeof hello, fds);
    if (received.bytes < kHeadBytes || hello.magic != kMeetingMagic) return;  // not one of us
    const bool other_version = hello.version != kMeetingVersion;  // whose hello may have another length
    if (!other_version && received.bytes != sizeof hello) return;
    if (received.lost_fds) throw SystemError(kTooFewFiles);
    if (fds.size() != 1) return;
    if (other_version)
      throw UsageError("workers of different versions of Lockstep: rendezvous " +
                       std::to_string(hello.version) + " and " + std::to_string(kMeetingVersion));
    if (hello.size != meet_.size)
      throw UsageError("workers disagree about their number: rank 0 was told " + std::to_string(meet_.size) +
                       ", rank " + std::to_string(hello.rank) + " was told " + std::to_string(hello.size));
    if (hello.rank < 1 || hello.rank >= meet_.size)
      throw UsageError("a worker says it is rank " + std::to_string(hello.rank) + " of " +
                       std::to_string(meet_.size));
    if (hello.region_bytes != meet_.shape.region_bytes)
      throw UsageError("workers disagree about LOCKSTEP_ARENA");
    Guest& guest = guests_[static_cast<std::size_t>(hello.rank)];
    if (guest.socket)
      throw UsageError("two workers both say they are rank " + std::to_string(hello.rank) + " of " +
                       std::to_string(meet_.size));
    guest.socket = std::move(socket);
    guest.pidfd = std::move(fds.front());
    cores_ |= hello.cores;
  }

  Met welcome() {
    Met met;
    met.arena = Arena::create(meet_.shape);
    met.cores = static_cast<int>(cores_.count());
    const UniqueFd own = own_pidfd();
    std::vector<int> fds{met.arena.get(), own.get()};
    for (int r = 1; r < meet_.size; ++r) fds.push_back(guests_[static_cast<std::size_t>(r)].pidfd.get());
    for (int r = 1; r < meet_.size; ++r)
      if (!hand_over(guests_[static_cast<std::size_t>(r)].socket.get(), fds, met.cores))
        throw PeerError(meet_.names.number(r), name_of(r) + " went away during the rendezvous");
    met.pidfds.emplace_back();
    for (int r = 1; r < meet_.size; ++r)
      met.pidfds.push_back(std::move(guests_[static_cast<std::size_t>(r)].pidfd));
    return met;
  }

  static bool hand_over(int socket, const std::vector<int>& fds, int cores) {
    const Reply reply = reply_of(nullptr, cores);
    const More more{kMeetingMagic};
    for (std::size_t at = 0; at < fds.size(); at += kMostDescriptors) {
      const auto end = fds.begin() + static_cast<std::ptrdiff_t>(std::min(fds.size(), at + kMostDescriptors));
      const std::vector<int> some(fds.begin() + static_cast<std::ptrdiff_t>(at), end);
      if (at == 0 ? !send_message(socket, &reply, sizeof reply, some)
                  : !send_message(socket, &more, sizeof more, some))
        return false;
    }
    return true;
  }

  const Meet& meet_;
  UniqueFd listener_;
  std::vector<Guest> guests_;       // by rank; 0 unused
  std::vector<UniqueFd> silent_;    // connected, have not spoken yet; oldest first
  std::vector<UniqueFd> speaking_;  // have spoken and are heard next; the oldest last
  CoreMask cores_;
};

// ---- the others

[[noreturn]] void rethrow(const Reply& reply, const std::string& host) {
  std::string text = one_line({reply.text, ::strnlen(reply.text, sizeof reply.text)});
  if (text.empty()) text = host + " ended the rendezvous without a word";
  switch (static_cast<ErrorKind>(reply.kind)) {
    case ErrorKind::peer: throw PeerError(reply.rank, text);
    case ErrorKind::timeout: throw TimeoutError(reply.missing.ranks(), text);
    case ErrorKind::usage: throw UsageError(text);
    default: throw SystemError(text);
  }
}

void await_answer(int socket, const Meet& meet, const Deadline& patience) {
  pollfd ready{socket, POLLIN, 0};
  int answered = 0;
  do
    answered = ::poll(
        &ready, 1, static_cast<int>(std::min<std::int64_t>(patience.left().count() / 1'000'000 + 1, 1000)));
  while (answered <= 0 && !patience.passed());
  if (answered <= 0)
    throw TimeoutError({meet.names.number(0)}, meet.names.named(meet.rank) + " waited for " +
                                                   meet.names.named(0) + ", which stopped answering");
}

PeerError host_went(const Meet& meet) {
  return {meet.names.number(0), meet.names.named(0) + " went away during the rendezvous"};
}

Met find_host(const Meet& meet) {
  const Deadline deadline = Deadline::after(meet.timeout);
  // Where rank 0 has come it speaks for all; where it has not, nobody knows who else waits.
  Stall stall(meet.warn_after);
  const std::string own_name = meet.names.named(meet.rank);
  const std::string host = meet.names.named(0);
  const auto door = knock_at(meet.door, deadline, [&, since = now_ns()] {
    if (stall.due(since)) stall.say({own_name, host, meet.call});
  });
  if (!door)
    throw TimeoutError({meet.names.number(0)},
                       own_name + " waited " + seconds_text(meet.timeout) + " for " + host +
                           ", which did not come (LOCKSTEP_INIT_TIMEOUT_S sets the time)");
  const UniqueFd& socket = *door;
  const Hello hello{kMeetingMagic, kMeetingVersion,         meet.rank,
                    meet.size,     meet.shape.region_bytes, own_cores()};
  const UniqueFd own = own_pidfd();
  send_message(socket.get(), &hello, sizeof hello, {own.get()});  // in vain if rank 0 gave up: it says why
  // Rank 0 gives up first and says who is missing; a little patience lets its answer through.
  const Deadline patience = Deadline::after(deadline.left() + std::chrono::seconds(2));
  await_answer(socket.get(), meet, patience);
  Reply reply{};
  std::vector<UniqueFd> fds;
  Received received = receive_message(socket.get(), &reply, sizeof reply, fds);
  // Where rank 0 closed without having read the hello, an error comes first and then what it said.
  if (received.bytes == 0) received = receive_message(socket.get(), &reply, sizeof reply, fds);
  if (received.bytes != sizeof reply || reply.magic != kMeetingMagic) throw host_went(meet);
  if (reply.kind != 0) rethrow(reply, host);
  const auto all = static_cast<std::size_t>(meet.size) + 1;
  while (!received.lost_fds && fds.size() < all) {
    More more{};
    await_answer(socket.get(), meet, patience);
    received = receive_message(socket.get(), &more, sizeof more, fds);
    if (received.bytes != sizeof more || more.magic != kMeetingMagic) throw host_went(meet);
  }
  if (received.lost_fds || fds.size() != all) throw SystemError(kTooFewFiles);
  Met met;
  met.cores = reply.cores;
  met.arena = std::move(fds.front());
  for (std::size_t i = 1; i < fds.size(); ++i) met.pidfds.push_back(std::move(fds[i]));
  met.pidfds[static_cast<std::size_t>(meet.rank)].reset();
  return met;
}

}  // namespace

Met rendezvous(const Meet& given) {
  Meet meet = given;
  if (meet.names.size() == 0) meet.names = RankNames::plain("", meet.size);
  return meet.rank == 0 ? Host(meet).run() : find_host(meet);
}

}  // namespace lockstep::shm
