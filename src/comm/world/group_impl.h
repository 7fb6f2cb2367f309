// Behind the Group handle: one front door for every call. It numbers and records calls, keeps their order
// (blocking ones run on the caller's thread when nothing is queued, asynchronous ones on the group's own
// thread), and on failure writes the flight recorder's dump once.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/call/call.h"
#include "comm/call/engine.h"
#include "comm/call/stall.h"
#include "comm/world/turns.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/lane_board.h"
#include "lockstep/observe/flight_recorder.h"

namespace lockstep {

class GroupImpl {
 public:
  // Destroying it waits for what is queued. Where the last handle goes in a continuation, its own or another
  // group's, the group's own thread ends what is queued and the group with it, and nobody waits.
  static Group make(std::unique_ptr<Engine> engine, std::string name, std::string job,
                    std::chrono::milliseconds timeout);
  static GroupImpl& of(const Group& group) { return group.impl(); }
  GroupImpl(const GroupImpl&) = delete;
  GroupImpl& operator=(const GroupImpl&) = delete;

  const std::string& name() const { return name_; }
  Engine& engine() const { return *engine_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const std::shared_ptr<LaneBoard>& lane_board() const { return lane_board_; }

  void run(Call call);
  Work start(Call call);
  Group split(int colour, int key);  // empty for a negative colour
  // This rank won't go on: `error` is what its peers get, and what every later call throws.
  void give_up(const Error& error);

 private:
  GroupImpl(std::unique_ptr<Engine> engine, std::string name, std::string job,
            std::chrono::milliseconds timeout);
  ~GroupImpl();
  static void release(GroupImpl* group);

  struct Queued {
    Call call;
    WorkPromise promise;
    Turns::Number turn = 0;
    DeviceEvent ready = {};  // what the caller's stream held when the call was made
  };

  // Records the call, executes it, records how it ended. Only the thread whose turn it is.
  template <class Body>
  void execute(Call& call, Body&& body);
  // Puts a call on this thread's current stream of its device, behind `ready` and the call on that device
  // before it; gives where it ends, and to `begin` where it begins. Likewise.
  DeviceEvent put_on_device(Call& call, const DeviceEvent& ready, DeviceEvent* begin = nullptr);
  // Where the group's last call on devices of that kind ends. Likewise.
  DeviceEvent& last_on(Device device) { return last_on_[static_cast<std::size_t>(device.kind)]; }
  void start_thread();
  void refuse_in_continuation(Collective what) const;
  void serve();
  void serve(Queued next);
  void dump(const Error& error) noexcept;        // once
  void write_dump(const Error* error) noexcept;  // null: dumped without a failure

  std::unique_ptr<Engine> engine_;
  std::string name_;
  std::string job_;
  std::chrono::milliseconds timeout_;
  std::vector<std::byte> own_flight_;  // when the engine has no ring for us
  FlightRing flight_;
  Stall stall_;
  const std::shared_ptr<LaneBoard> lane_board_ = std::make_shared<LaneBoard>();
  Turns turns_;
  // Of the thread whose turn it is.
  std::uint64_t sequence_ = 0;  // of collectives; messages between two ranks are not counted
  int splits_ = 0;
  std::array<DeviceEvent, kDeviceKinds> last_on_;
  bool followed_ = false;  // functions ran behind a call, since the last one on a device was put there
  bool dumped_ = false;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Queued> queue_;  // by turn
  bool stopping_ = false;
  bool orphaned_ = false;  // the thread is the last that knows of the group
  std::thread thread_;     // started by the first asynchronous call
};

// For the rest of the room, what measures engines, and tests; throws UsageError when the group is empty.
inline Engine& engine_of(const Group& group) { return GroupImpl::of(group).engine(); }

// The same for who keeps the engine and not the group: it keeps both.
inline std::shared_ptr<Engine> kept_engine_of(const Group& group) {
  return {std::make_shared<Group>(group), &engine_of(group)};
}

// A group over an engine made elsewhere (MPI, Gloo).
Group make_group(std::unique_ptr<Engine> engine, std::string name, std::chrono::milliseconds timeout);

}  // namespace lockstep
