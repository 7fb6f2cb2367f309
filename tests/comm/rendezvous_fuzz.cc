// Throws packets at the rendezvous of one machine. A stranger's first word (of the same user: others are not
// heard at all) never keeps rank 0 from ending as it says: with the real worker, or with an error of one line
// that both are told. Whatever a false rank 0 answers, a worker gets an error or what it asked for.
//
// Input: byte 0: bit 0: to whom, 0 to rank 0; bits 1 and 2: how many descriptors come along; then the packet.
#include <sys/socket.h>
#include <unistd.h>

#include <string_view>
#include <thread>

#include "base/cores.h"
#include "base/fuzz_driver.h"
#include "comm/call/rank_mask.h"
#include "comm/shm/door.h"
#include "comm/shm/message.h"
#include "comm/shm/rendezvous.h"
#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

constexpr std::chrono::milliseconds kPatience{5000};

std::string new_door() {
  static int number = 0;
  return "rendezvous_fuzz " + std::to_string(::getpid()) + " " + std::to_string(number++);
}

Meet meet(const std::string& door, int rank) {
  return {.door = door,
          .job = "fuzz",
          .rank = rank,
          .size = 2,
          .shape = {.ranks = 2, .region_bytes = std::uint64_t{1} << 20},
          .timeout = kPatience};
}

// How a rank fared: what it was refused with, or nothing.
std::string fate(const Meet& as) {
  try {
    const Met met = rendezvous(as);
    fuzz::require(met.arena && met.pidfds.size() == 2, "half a welcome");
    return "";
  } catch (const Error& error) {
    const std::string text = error.what();
    fuzz::require(!text.empty() && text.find('\n') == std::string::npos, "an error that is not one line");
    return text;
  }
}

void send_packet(int socket, std::string_view bytes, int descriptors) {
  // The descriptors are those of the connection itself: any will do.
  send_message(socket, bytes.data(), bytes.size(),
               std::vector<int>(static_cast<std::size_t>(descriptors), socket));
}

constexpr std::uint32_t kMagic = 0x4c4b5354;
constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kRegion = 1 << 20;

template <class... Fields>
std::string packed(const Fields&... fields) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&fields), sizeof fields), ...);
  return bytes;
}

std::string hello_head(std::uint32_t version, std::int32_t rank, std::int32_t size) {
  return packed(kMagic, version, rank, size, kRegion);
}

void to_rank_0(std::string_view packet, int descriptors) {
  const std::string door = new_door();
  std::string of_host;
  std::thread host([&] { of_host = fate(meet(door, 0)); });
  const auto stranger = knock_at(door, Deadline::after(kPatience));
  fuzz::require(stranger.has_value(), "rank 0 does not listen");
  send_packet(stranger->get(), packet, descriptors);
  // Who says what a worker would say is taken for one: for rank 1, or for one that does not fit, and the job
  // ends. Anybody else is passed over, and the real worker meets rank 0.
  const std::string head = hello_head(kVersion, 1, 2);
  const bool fits = packet.starts_with(packed(kMagic, kVersion))
                        ? packet.size() == head.size() + sizeof(CoreMask)
                        : packet.size() >= sizeof kMagic + sizeof kVersion;
  const bool speaks = fits && packet.starts_with(packed(kMagic)) && descriptors == 1;
  const std::string of_worker = speaks ? "" : fate(meet(door, 1));
  host.join();
  fuzz::require(of_worker.empty(),
                ("a stranger kept a worker out: " + of_worker + "; rank 0: " + of_host).c_str());
  fuzz::require(of_host.empty() == (!speaks || packet.starts_with(head)),
                "rank 0 took the wrong one, or refused the right");
  fuzz::accepted = of_host.empty();
}

std::string welcome_head() { return packed(kMagic, std::int32_t{0}); }

std::string reply(std::int32_t kind, std::int32_t rank, const std::string& text) {
  std::string bytes = packed(kMagic, kind, rank, std::int32_t{2}, mask_of({1}));
  return bytes + text + std::string(512 - text.size(), '\0');
}

void to_the_worker(std::string_view packet, int descriptors) {
  const std::string door = new_door();
  UniqueFd listener = listen_at(door, "fuzz", 4);
  std::thread host([&] {
    const UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char hello[4096];
    std::vector<UniqueFd> fds;
    (void)receive_message(socket.get(), hello, sizeof hello, fds);
    send_packet(socket.get(), packet, descriptors);
  });
  const bool met = fate(meet(door, 1)).empty();
  host.join();
  fuzz::require(met == (descriptors == 3 && packet.starts_with(welcome_head()) &&
                        packet.size() == reply(0, 0, "").size()),
                "a worker that met nobody, or did not take a welcome");
  fuzz::accepted = met;
}

std::string hello(std::uint32_t version, std::int32_t rank, std::int32_t size) {
  return hello_head(version, rank, size) + std::string(sizeof(CoreMask), '\1');
}

}  // namespace
}  // namespace lockstep::shm

void lockstep::fuzz::one(std::string_view input) {
  if (input.empty()) return;
  const auto head = static_cast<unsigned char>(input[0]);
  const std::string_view packet = input.substr(1);
  const int descriptors = head >> 1 & 3;
  if (packet.empty() || packet.size() > 60'000) return;  // an empty packet is the end of a connection
  if ((head & 1) == 0)
    lockstep::shm::to_rank_0(packet, descriptors);
  else
    lockstep::shm::to_the_worker(packet, descriptors);
}

std::vector<std::string> lockstep::fuzz::seeds() {
  using namespace lockstep::shm;
  // All of these are taken: rank 1 itself, strangers that are passed over, and a welcome.
  return {std::string("\x02") + hello(kVersion, 1, 2), std::string("\0stranger", 9),
          std::string("\x04") + hello(kVersion, 1, 2), std::string("\x07") + reply(0, 0, "")};
}
