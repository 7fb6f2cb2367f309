#include "comm/channel/mpi_transfer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "lockstep/base/clock.h"

namespace lockstep::mpi {
namespace {

// Payloads up to this travel with their head. With it they stay below the 4 KiB from which Open MPI's shared
// memory makes sender and receiver meet.
constexpr std::size_t kInlineBytes = 3968;
// Small enough to stay in the core's own cache between arriving and being added; with less, Open MPI's shared
// memory is slower.
constexpr std::size_t kChunkBytes = std::size_t{512} << 10;
constexpr int kChunksUnderWay = 3;

}  // namespace

struct Transfer::Head {
  CallCard card;
  std::uint64_t bytes = 0;  // of the whole payload
};

struct Transfer::Rooms {
  struct HeadRoom {
    Head head;
    std::byte payload[kInlineBytes];
  };
  static_assert(sizeof(HeadRoom) == 64 + kInlineBytes);
  std::vector<std::unique_ptr<HeadRoom>> heads;
  std::vector<std::unique_ptr<std::byte[]>> chunks;
  std::vector<std::byte*> free_chunks;

  std::byte* chunk() {
    if (free_chunks.empty())
      free_chunks.push_back(
          chunks.emplace_back(std::make_unique_for_overwrite<std::byte[]>(kChunkBytes)).get());
    std::byte* const room = free_chunks.back();
    free_chunks.pop_back();
    return room;
  }
};

Transfer::Transfer(Line& line, std::shared_ptr<Naming> naming, Judge judge)
    : line_(line), naming_(std::move(naming)), judge_(std::move(judge)), rooms_(std::make_shared<Rooms>()) {}
Transfer::~Transfer() = default;

void Transfer::raise_of(int code, const char* way, int peer) const {
  const RankNames names = naming_->get();
  raise(code, std::string(way) + " " + names.named(peer), names.number(peer));
}

void Transfer::start(std::span<const Outgoing> sends, std::span<const Incoming> recvs, const CallCard& card,
                     Tag tag) {
  tag_ = tag;
  sending_.clear();
  receiving_.clear();
  open_ = sends.size() + recvs.size();
  while (rooms_->heads.size() < open_) rooms_->heads.push_back(std::make_unique<Rooms::HeadRoom>());
  std::size_t room = 0;
  for (const Incoming& recv : recvs) {
    receiving_.push_back({.what = recv, .head = room});
    Rooms::HeadRoom& head = *rooms_->heads[room++];
    const std::size_t index = receiving_.size() - 1;
    post({.of = Slot::Of::head, .index = index}, reinterpret_cast<std::byte*>(&head), sizeof head, recv.peer);
  }
  for (const Outgoing& send : sends) {
    Sending& sending = sending_.emplace_back(Sending{.what = send, .head = room});
    Rooms::HeadRoom& head = *rooms_->heads[room++];
    head.head = {.card = card, .bytes = send.bytes.size()};
    std::size_t bytes = sizeof(Head);
    if (send.bytes.size() <= kInlineBytes) {
      if (!send.bytes.empty()) std::memcpy(head.payload, send.bytes.data(), send.bytes.size());
      bytes += send.bytes.size();
      sending.posted = send.bytes.size();
    }
    const std::size_t index = sending_.size() - 1;
    ++sending.under_way;
    post({.of = Slot::Of::send, .index = index}, reinterpret_cast<std::byte*>(&head), bytes, send.peer);
    send_more(index);
  }
}

void Transfer::post(const Slot& slot, std::byte* data, std::size_t bytes, int peer) {
  std::size_t at = 0;
  while (at < slots_.size() && slots_[at].of != Slot::Of::nothing) ++at;
  if (at == slots_.size()) {
    slots_.emplace_back();
    requests_.push_back(MPI_REQUEST_NULL);
    done_.emplace_back();
    statuses_.emplace_back();
  }
  const bool sends = slot.of == Slot::Of::send;
  const auto count = static_cast<int>(bytes);
  const int code = [&] {
    const auto door = Runtime::get().door();
    return sends ? MPI_Isend(data, count, MPI_BYTE, peer, tag_, line_.comm(), &requests_[at])
                 : MPI_Irecv(data, count, MPI_BYTE, peer, tag_, line_.comm(), &requests_[at]);
  }();
  if (code != MPI_SUCCESS) raise_of(code, sends ? "MPI_Isend to" : "MPI_Irecv from", peer);
  slots_[at] = slot;
}

void Transfer::send_more(std::size_t index) {
  Sending& send = sending_[index];
  while (send.posted < send.what.bytes.size() && send.under_way <= kChunksUnderWay) {
    const std::size_t bytes = std::min(kChunkBytes, send.what.bytes.size() - send.posted);
    std::byte* const room = rooms_->chunk();
    std::memcpy(room, send.what.bytes.data() + send.posted, bytes);
    ++send.under_way;
    post({.of = Slot::Of::send, .index = index, .room = room}, room, bytes, send.what.peer);
    send.posted += bytes;
  }
}

void Transfer::receive_more(std::size_t index) {
  Receiving& recv = receiving_[index];
  while (recv.posted < recv.what.bytes.size() && recv.under_way < kChunksUnderWay) {
    const std::size_t bytes = std::min(kChunkBytes, recv.what.bytes.size() - recv.posted);
    std::byte* const room = rooms_->chunk();
    ++recv.under_way;
    post({.of = Slot::Of::chunk, .index = index, .begin = recv.posted, .bytes = bytes, .room = room}, room,
         bytes, recv.what.peer);
    recv.posted += bytes;
  }
}

void Transfer::open(std::size_t index, std::size_t came, const kernel::Reduction& reduction) {
  Receiving& recv = receiving_[index];
  const Rooms::HeadRoom& room = *rooms_->heads[recv.head];
  const std::size_t expected = recv.what.bytes.size();
  CallCard card;
  std::uint64_t bytes = 0;
  if (came >= sizeof(Head)) {
    card = room.head.card;
    bytes = room.head.bytes;
  }
  // A peer of another build, or something that is no head at all, fails here too: the length can't be right.
  const std::size_t inside = bytes <= kInlineBytes ? bytes : 0;
  if (came != sizeof(Head) + inside) card = {};
  judge_(recv.what.peer, card, bytes, expected);
  recv.opened = true;
  if (expected <= kInlineBytes) {
    recv.what.take(0, room.payload, expected, reduction);
    recv.posted = recv.got = expected;
  } else {
    receive_more(index);
  }
  if (recv.done()) --open_;
}

void Transfer::completed(const Slot& slot, const MPI_Status& status, const kernel::Reduction& reduction) {
  if (slot.of == Slot::Of::send) {
    Sending& send = sending_[slot.index];
    --send.under_way;
    if (slot.room != nullptr) rooms_->free_chunks.push_back(slot.room);
    send_more(slot.index);
    if (send.under_way == 0) --open_;
    return;
  }
  int came = 0;
  MPI_Get_count(&status, MPI_BYTE, &came);
  if (slot.of == Slot::Of::head) return open(slot.index, static_cast<std::size_t>(came), reduction);
  Receiving& recv = receiving_[slot.index];
  if (static_cast<std::size_t>(came) != slot.bytes)
    throw MismatchError(naming_->get().named(recv.what.peer) + " sent " + std::to_string(came) +
                        " bytes where " + std::to_string(slot.bytes) + " were expected");
  --recv.under_way;
  recv.got += slot.bytes;
  // The next one may come while this one is added.
  receive_more(slot.index);
  recv.what.take(slot.begin, slot.room, slot.bytes, reduction);
  rooms_->free_chunks.push_back(slot.room);
  if (recv.done()) --open_;
}

bool Transfer::turn(const kernel::Reduction& reduction) {
  int count = 0;
  const int code = [&] {
    const auto door = Runtime::get().door();
    return MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, done_.data(),
                        statuses_.data());
  }();
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) raise(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return false;
  // First all slots are given back, so that an error below leaves no finished request among the open ones.
  std::vector<Slot>& ended = ended_;
  ended.clear();
  for (int i = 0; i < count; ++i) {
    Slot& slot = slots_[static_cast<std::size_t>(done_[static_cast<std::size_t>(i)])];
    ended.push_back(slot);
    slot = {};
  }
  for (int i = 0; i < count; ++i) {
    const Slot& slot = ended[static_cast<std::size_t>(i)];
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) {
      const bool sends = slot.of == Slot::Of::send;
      const int peer = sends ? sending_[slot.index].what.peer : receiving_[slot.index].what.peer;
      raise_of(status.MPI_ERROR, sends ? "sending to" : "receiving from", peer);
    }
    completed(slot, status, reduction);
  }
  return true;
}

std::vector<int> Transfer::waiting_for() const {
  std::vector<int> ranks;
  for (const Sending& send : sending_)
    if (send.under_way > 0) ranks.push_back(send.what.peer);
  for (const Receiving& recv : receiving_)
    if (!recv.done()) ranks.push_back(recv.what.peer);
  std::ranges::sort(ranks);
  const auto twice = std::ranges::unique(ranks);
  ranks.erase(twice.begin(), twice.end());
  return ranks;
}

void Transfer::abandon() noexcept {
  constexpr std::chrono::milliseconds kPatience{100};
  bool all = true;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].of == Slot::Of::nothing || requests_[i] == MPI_REQUEST_NULL) continue;
    all = false;
    if (slots_[i].of == Slot::Of::send) continue;  // can't be cancelled; its peer may still take it
    const auto door = Runtime::get().door();
    MPI_Cancel(&requests_[i]);
  }
  const Deadline deadline = Deadline::after(kPatience);
  while (!all && !deadline.passed()) {
    int done = 0;
    {
      const auto door = Runtime::get().door();
      if (MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE) !=
          MPI_SUCCESS)
        break;
    }
    all = done != 0;
    if (!all) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (!all) line_.keep(rooms_);
  rooms_ = std::make_shared<Rooms>();
  slots_.clear();
  requests_.clear();
  open_ = 0;
}

}  // namespace lockstep::mpi
