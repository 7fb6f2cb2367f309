#include "comm/engine/gloo_channel.h"

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>

namespace lockstep {
namespace {

// Gloo's own collectives use prefixes 1 to 8 in the top byte. Messages of one slot between two ranks match in
// their order.
constexpr std::uint64_t kMessageSlot = std::uint64_t{0x70} << 56;
constexpr std::uint64_t kExchangeSlot = std::uint64_t{0x71} << 56;

using Posted = std::unique_ptr<gloo::transport::UnboundBuffer>;

}  // namespace

int GlooChannel::rank() const { return context_->rank; }
int GlooChannel::size() const { return context_->size; }

// Never 0, which would not even take what has come.
std::chrono::milliseconds GlooChannel::left() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.left());
  return std::max(left, std::chrono::milliseconds(1));
}

// Empty messages are not sent: their receiver knows that there is nothing.
void GlooChannel::exchange(std::span<const Outgoing> sends, std::span<const Incoming> recvs,
                           const kernel::Reduction& reduction) {
  std::size_t folded = 0;
  for (const Incoming& recv : recvs)
    if (recv.arrival != Arrival::store) folded += recv.bytes.size();
  if (room_.size() < folded) room_.resize(folded);
  std::vector<Posted> coming(recvs.size());
  std::vector<Posted> going(sends.size());
  std::vector<std::byte*> places(recvs.size());
  std::size_t used = 0;
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    const Incoming& recv = recvs[i];
    if (recv.bytes.empty()) continue;
    places[i] = recv.bytes.data();
    if (recv.arrival != Arrival::store) {
      places[i] = room_.data() + used;
      used += recv.bytes.size();
    }
    coming[i] = context_->createUnboundBuffer(places[i], recv.bytes.size());
    coming[i]->recv(recv.peer, kExchangeSlot);
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (sends[i].bytes.empty()) continue;
    // Gloo takes one kind of pointer for both ways; it only reads from here.
    going[i] =
        context_->createUnboundBuffer(const_cast<std::byte*>(sends[i].bytes.data()), sends[i].bytes.size());
    going[i]->send(sends[i].peer, kExchangeSlot);
  }
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    if (coming[i] == nullptr) continue;
    coming[i]->waitRecv(left());
    if (recvs[i].arrival != Arrival::store) recvs[i].take(0, places[i], recvs[i].bytes.size(), reduction);
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (going[i] == nullptr) continue;
    going[i]->waitSend(left());
  }
}

void GlooChannel::send(int to, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const Posted buffer = context_->createUnboundBuffer(const_cast<std::byte*>(bytes.data()), bytes.size());
  buffer->send(to, kMessageSlot);
  buffer->waitSend(left());
}

void GlooChannel::recv(int from, std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  const Posted buffer = context_->createUnboundBuffer(bytes.data(), bytes.size());
  buffer->recv(from, kMessageSlot);
  buffer->waitRecv(left());
}

}  // namespace lockstep
