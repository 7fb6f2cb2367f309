// What the ranks of one communicator tell each other beside data: that the group failed and why, that a rank
// waits, that a rank leaves. Small messages on a tag of their own, which a rank looks at when it has waited
// for a while, so that they cost nothing as long as all goes well.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/agree/call_card.h"
#include "comm/agree/group_failure.h"
#include "comm/call/failure_record.h"
#include "comm/call/rank_mask.h"
#include "comm/channel/mpi_runtime.h"

namespace lockstep::mpi {

// The tags of a communicator. MPI's own collectives are apart from all of them; but Open MPI makes groups by
// messages on the tag that it is given, hence kGroupTag.
enum Tag : int { kCollectiveTag = 1, kMessageTag = 2, kControlTag = 3, kNativeTag = 4, kGroupTag = 5 };

class Line {
 public:
  // Takes the communicator over.
  explicit Line(MPI_Comm comm);
  ~Line();  // frees it, unless the line failed
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Makes `error` the group's failure unless it has one, and tells everybody. Waits for nobody.
  void fail(const Error& error) noexcept;
  bool failed() const { return failure_.any(); }
  void check() const { failure_.check(); }  // throws the failure, if there is one

  // Takes what has come. From any thread.
  void listen();

  // "I wait, in this call, for these ranks", to everybody. Said again every kSayEvery while it is so.
  static constexpr std::chrono::milliseconds kSayEvery{500};
  struct Waiting {
    CallCard card;
    std::vector<int> waits_for;
  };
  void say_waiting(const CallCard& card, const std::vector<int>& waits_for);
  // What `rank` said so lately.
  std::optional<Waiting> waits(int rank) const;

  void leave();  // "I take part no more", to everybody
  bool has_left(int rank) const;
  // Everybody has left and knows that this rank has: nothing more will come.
  bool deserted();

  // Memory that MPI may still touch after a failure, because a request in it could not be ended: kept as long
  // as the line, which a failure keeps as long as the process.
  void keep(std::shared_ptr<void> memory);

 private:
  enum class Kind : std::int32_t { failure = 1, waiting = 2, leaving = 3 };
  struct Note {
    Kind kind = Kind::failure;
    std::int32_t unused = 0;
    CallCard card = {};         // waiting
    FailureRecord record = {};  // failure; `missing` says for whom a waiting rank waits
  };
  struct Sent {
    Note note;
    std::vector<MPI_Request> requests;
  };
  struct Peer {
    bool left = false;
    std::int64_t waits_ns = 0;  // when it last said that it waits
    CallCard waits_in = {};
    RankMask waits_for = {};
    bool waits() const {
      return waits_ns != 0 && now_ns() - waits_ns < 4 * std::chrono::nanoseconds(kSayEvery).count();
    }
  };
  void tell(const Note& note);
  void take(int from, const Note& note);
  void forget_sent();  // those that are out

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  mutable std::mutex mutex_;
  GroupFailure failure_;
  std::vector<Peer> peers_;
  std::list<Sent> sent_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace lockstep::mpi
