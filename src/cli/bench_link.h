// How workers tell the parent what they measured: a local socket with a name but no file, so that
// nothing is left behind. One JSON object a line, from rank 0; other ranks connect only to report an error.
//   {"event": "progress", "bytes": …, "step": …, "steps": …}    {"event": "row", "row": BenchRow}
//   {"event": "note", "text": …}                  {"event": "error", "kind": "usage", "text": …}
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::cli {

// The parent's end.
class BenchListener {
 public:
  BenchListener();  // throws SystemError

  const std::string& name() const { return name_; }
  // Hands every event to `handle` until the child process has ended and all that arrived is handled.
  // SIGINT, SIGTERM and SIGHUP to this process meanwhile go to the child. Gives its wait status.
  int serve(pid_t child, const std::function<void(const nlohmann::ordered_json&)>& handle);
  // The signal that this process got while it served; 0 if none.
  int interrupted_by() const { return interrupted_by_; }

 private:
  struct Peer {
    UniqueFd fd;
    std::string partial;  // of the line that has not ended
  };
  void take(int fd, const std::function<void(const nlohmann::ordered_json&)>& handle);

  std::string name_;
  UniqueFd listener_;
  std::map<int, Peer> peers_;  // by descriptor
  int interrupted_by_ = 0;
};

// A worker's end.
class BenchReporter {
 public:
  explicit BenchReporter(const std::string& name);  // throws SystemError
  // Where there is no parent, because the workers were started as a job: events are handled here.
  using Handler = std::function<void(const nlohmann::ordered_json&)>;
  explicit BenchReporter(Handler handler);
  bool here() const { return handler_ != nullptr; }
  void send(const nlohmann::ordered_json& event);

 private:
  UniqueFd socket_;
  Handler handler_;
};

}  // namespace lockstep::cli
