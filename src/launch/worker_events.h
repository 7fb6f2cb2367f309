// How workers tell the command that started them what they do: a local socket with a name but no file, so
// that nothing is left behind. Anybody on the machine can see the name, so both ends make sure that the other
// is the same user's. One JSON object a line, from rank 0; other ranks connect only to report an error.
//   {"event": "progress", …}        {"event": "row", "row": …}     and what else the two agree on
//   {"event": "note", "text": …}    {"event": "error", "kind": "usage", "text": …}
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep {

// What a worker said went wrong.
struct WorkerError {
  std::string kind;
  std::string text;
};

// The parent's end.
class EventListener {
 public:
  // Listens to processes of `user` only: the name is there for everybody to see. Throws SystemError.
  explicit EventListener(uid_t user = ::geteuid());

  const std::string& name() const { return name_; }
  // Hands every event to `handle` until the child process has ended and all that arrived is handled.
  // SIGINT, SIGTERM, SIGHUP and SIGQUIT to this process meanwhile go to the child, and `told` hears of each.
  // Gives its wait status.
  // What is no report, or one that `handle` can't read (it throws a JSON exception), is passed over and
  // mentioned once.
  using Handler = std::function<void(const nlohmann::ordered_json&)>;
  using SignalHandler = std::function<void(int)>;
  int serve(pid_t child, const Handler& handle, const SignalHandler& told = {});
  // The first signal that this process got while it served; 0 if none.
  int interrupted_by() const { return interrupted_by_; }

 private:
  struct Peer {
    UniqueFd fd;
    std::string partial;  // of the line that has not ended
  };
  void note_signal(int signal, const SignalHandler& told);
  bool let_in();  // false when only strangers knocked
  void take(int fd, const Handler& handle);
  void hand_on(const std::string& line, const Handler& handle);
  void mention(const std::string& what);

  std::string name_;
  uid_t user_;
  UniqueFd listener_;
  std::map<int, Peer> peers_;  // by descriptor
  int interrupted_by_ = 0;
  bool mentioned_ = false;
};

// A worker's end.
class EventReporter {
 public:
  // Reports to a parent that is a process of `user`. Throws SystemError.
  explicit EventReporter(const std::string& name, uid_t user = ::geteuid());
  // Where there is no parent, because the workers were started as a job: events are handled here.
  using Handler = std::function<void(const nlohmann::ordered_json&)>;
  explicit EventReporter(Handler handler);
  bool here() const { return handler_ != nullptr; }
  void send(const nlohmann::ordered_json& event);
  // The same if it is taken at once; else it is dropped. For progress: the parent may wait for a reader who
  // has gone for a walk, and a worker that waited for it would be taken for lost by the others.
  void offer(const nlohmann::ordered_json& event);
  // For results, between two collectives: nothing is waited for, and nothing lost. What is not taken at once
  // goes with the next event, or with flush().
  void post(const nlohmann::ordered_json& event);
  // Waits until all that was posted is taken: where no other worker waits for this one.
  void flush();

 private:
  enum class Wait : bool { no, yes };
  void send_pending(Wait wait);

  UniqueFd socket_;
  Handler handler_;
  std::string pending_;  // lines that were posted, and the rest of one that was begun
};

}  // namespace lockstep
