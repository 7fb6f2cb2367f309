// The messages of one exchange over MPI, on their way. Non-blocking: the owner calls turn() until finished().
//
// A message is a head (the sender's CallCard and the length) and its payload: a small one in the same MPI
// message, a large one behind it in chunks, several at a time, so that one is added up while the next
// arrives.
//
// MPI is never given the caller's memory, only rooms of ours: a request that is under way when the call fails
// can neither be ended nor waited for, and MPI may read or write its memory as long as the process lives. The
// copy is of a chunk that is in the core's cache.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/agree/call_card.h"
#include "comm/call/rank_names.h"
#include "comm/channel/channel.h"
#include "comm/channel/mpi_line.h"

namespace lockstep::mpi {

class Transfer {
 public:
  // Called with every head that comes, before anything behind it is received; throws what is wrong with it.
  using Judge =
      std::function<void(int from, const CallCard& card, std::uint64_t bytes, std::uint64_t expected)>;

  // `naming`: what the line's ranks are called.
  Transfer(Line& line, std::shared_ptr<Naming> naming, Judge judge);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  void start(std::span<const Outgoing> sends, std::span<const Incoming> recvs, const CallCard& card, Tag tag);
  bool turn(const kernel::Reduction& reduction);  // true when something moved
  bool finished() const { return open_ == 0; }
  std::vector<int> waiting_for() const;  // peers, rising

  // Ends what can be ended; memory of requests that can't be stays alive as long as the line.
  void abandon() noexcept;

 private:
  struct Head;
  struct Rooms;
  struct Sending {
    Outgoing what;
    std::size_t head = 0;    // which room
    std::size_t posted = 0;  // bytes of payload
    int under_way = 0;       // requests
  };
  struct Receiving {
    Incoming what;
    std::size_t head = 0;
    bool opened = false;  // its head has come and fits
    std::size_t posted = 0;
    std::size_t got = 0;
    int under_way = 0;
    bool done() const { return opened && got == what.bytes.size(); }
  };
  // What a request is of.
  struct Slot {
    enum class Of { nothing, send, head, chunk } of = Of::nothing;
    std::size_t index = 0;  // into sending_ or receiving_
    std::size_t begin = 0;  // of a chunk
    std::size_t bytes = 0;
    std::byte* room = nullptr;  // of a chunk
  };

  void send_more(std::size_t index);
  void receive_more(std::size_t index);
  void open(std::size_t index, std::size_t came, const kernel::Reduction& reduction);
  void completed(const Slot& slot, const MPI_Status& status, const kernel::Reduction& reduction);
  void post(const Slot& slot, std::byte* data, std::size_t bytes, int peer);
  // Throws what MPI says of a message `way` ("sending to", "receiving from") this peer.
  [[noreturn]] void raise_of(int code, const char* way, int peer) const;

  Line& line_;
  std::shared_ptr<Naming> naming_;
  Judge judge_;
  Tag tag_ = kCollectiveTag;
  std::size_t open_ = 0;  // sends and receives that are not done
  // Kept between exchanges: no allocation on the way.
  std::vector<Sending> sending_;
  std::vector<Receiving> receiving_;
  std::vector<MPI_Request> requests_;
  std::vector<Slot> slots_;  // of each request
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
  std::vector<Slot> ended_;
  std::shared_ptr<Rooms> rooms_;
};

}  // namespace lockstep::mpi
