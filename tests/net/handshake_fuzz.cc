// Throws bytes at both sides of the plaintext handshake. Whatever they are: a side is convinced only by
// exactly what an honest peer with the key would have said, says no more than its fixed messages, and takes
// no byte beyond the handshake.
//
// Input: byte 0, bit 0: which side is attacked; bit 1: the rest is nonce and hello of an honest peer, whose
// words are then changed at one place; byte 1: how many bytes arrive at a time.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/fuzz_driver.h"
#include "net/proof.h"

namespace lockstep::net {
namespace {

constexpr std::string_view kHex = "8f3a5c7e9b1d2f4068ace02468ace13579bdf02468ace13579bdf024681357ac";
const Secret& key() {
  static const Secret made = Secret::parse(kHex);
  return made;
}

Nonce own_nonce() {
  Nonce nonce;
  nonce.fill(std::byte{0x5a});
  return nonce;
}

Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

// Gives `words` to one side, in pieces; returns how many of them it took.
std::size_t give(Proof& side, std::string_view words, std::size_t piece) {
  std::size_t taken = 0;
  while (side.state() == ProofState::unfinished && taken < words.size()) {
    const std::size_t count = std::min({piece, side.wants(), words.size() - taken});
    fuzz::require(count > 0, "an unfinished side wants nothing");
    fuzz::require(side.wants() <= kMostHello + 64, "a side wants more than any message has");
    side.take(bytes_of(words.substr(taken, count)));
    taken += count;
  }
  return taken;
}

// All that an honest dialler says to our gate, or an honest gate to our dialler.
std::string honest_dialler(const Nonce& nonce, const std::string& hello) {
  GateProof gate(key(), own_nonce());
  DialProof peer(key(), nonce, hello);
  std::string words = peer.to_send();
  give(gate, words, 999);
  give(peer, gate.to_send(), 999);
  return words + peer.to_send();
}

std::string honest_gate(const Nonce& nonce, const std::string& hello) {
  DialProof dialler(key(), own_nonce(), hello);
  GateProof peer(key(), nonce);
  give(peer, dialler.to_send(), 999);
  std::string words = peer.to_send();
  give(dialler, words, 999);
  give(peer, dialler.to_send(), 999);
  return words + peer.to_send();
}

Nonce nonce_in(std::string_view words, std::size_t at) {
  Nonce nonce{};
  if (words.size() > at)
    std::memcpy(nonce.data(), words.data() + at, std::min(nonce.size(), words.size() - at));
  return nonce;
}

const std::string kOurHello = "our hello";

void attack_gate(std::string_view words, std::size_t piece) {
  GateProof gate(key(), own_nonce());
  const std::size_t taken = give(gate, words, piece);
  const std::size_t said = gate.to_send().size();
  if (gate.state() == ProofState::proven) {
    fuzz::require(gate.hello().size() <= kMostHello, "a hello that is too long");
    fuzz::require(words.substr(0, taken) == honest_dialler(nonce_in(words, kMagicBytes), gate.hello()),
                  "a gate was convinced by other words than an honest dialler's");
    fuzz::accepted = true;
  } else {
    fuzz::require(said <= kMagicBytes + sizeof(Nonce) + sizeof(Code), "a gate says too much to a stranger");
    fuzz::require(gate.hello().empty(), "a stranger's hello is kept");
  }
  fuzz::require((gate.refusal() != Refusal::none) == (gate.state() == ProofState::refused),
                "a refusal without a reason");
}

void attack_dialler(std::string_view words, std::size_t piece) {
  DialProof dialler(key(), own_nonce(), kOurHello);
  const std::size_t greeting = dialler.to_send().size();
  fuzz::require(greeting == kMagicBytes + sizeof(Nonce), "a dialler's greeting has another length");
  const std::size_t taken = give(dialler, words, piece);
  const std::string said = dialler.to_send();
  if (dialler.state() == ProofState::proven) {
    fuzz::require(words.substr(0, taken) == honest_gate(nonce_in(words, kMagicBytes), kOurHello),
                  "a dialler was convinced by other words than an honest gate's");
    fuzz::accepted = true;
  }
  // The hello is for a gate that knows the key.
  const std::string honest = honest_gate(nonce_in(words, kMagicBytes), kOurHello);
  const std::size_t answer = kMagicBytes + sizeof(Nonce) + sizeof(Code);
  if (!said.empty())
    fuzz::require(words.size() >= answer && words.substr(0, answer) == honest.substr(0, answer),
                  "a dialler told its hello to a stranger");
}

void attack_with(std::string_view input) {
  if (input.size() < 2) return;
  const bool dialler = (input[0] & 1) != 0;
  const bool honest = (input[0] & 2) != 0;
  const std::size_t piece = 1 + static_cast<unsigned char>(input[1]);
  std::string_view rest = input.substr(2);
  std::string words(rest);
  if (honest) {
    if (rest.size() < 3) return;
    const std::size_t place = static_cast<unsigned char>(rest[0]) << 8 | static_cast<unsigned char>(rest[1]);
    const char change = rest[2];
    rest.remove_prefix(3);
    const Nonce nonce = nonce_in(rest, 0);
    const std::string hello(rest.substr(std::min<std::size_t>(32, rest.size()), kMostHello));
    words = dialler ? honest_gate(nonce, kOurHello) : honest_dialler(nonce, hello);
    if (place < words.size()) words[place] = static_cast<char>(words[place] ^ change);
  }
  dialler ? attack_dialler(words, piece) : attack_gate(words, piece);
}

}  // namespace

}  // namespace lockstep::net

void lockstep::fuzz::one(std::string_view input) { net::attack_with(input); }

std::vector<std::string> lockstep::fuzz::seeds() {
  using namespace lockstep::net;
  Nonce nonce;
  nonce.fill(std::byte{0x33});
  std::vector<std::string> seeds;
  for (const std::size_t length : {0, 1, 20, 256})
    seeds.push_back(std::string("\0\x40", 2) + honest_dialler(nonce, std::string(length, 'h')));
  seeds.push_back(std::string("\1\x40") + honest_gate(nonce, kOurHello));
  // An honest peer whose words are changed by nothing at place 0.
  for (const char side : {'\2', '\3'})
    seeds.push_back(std::string{side, '\7', '\0', '\0', '\0'} + std::string(32, 'n') + "worker 5");
  return seeds;
}
