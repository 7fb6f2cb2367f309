// What the workers of this machine write, on its way to the launcher's own output and to files.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "launch/events.h"
#include "launch/relay.h"
#include "launch/sink.h"
#include "lockstep/base/fd.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launcher {

// The launcher's own output: [0] standard output, [1] standard error.
using Sinks = std::array<Sink, 2>;

class WorkerOutput {
 public:
  // `log_folder` exists, or is empty when nothing goes to files. All references outlive it.
  WorkerOutput(const LaunchOptions& options, int first_rank, std::string log_folder, Sinks& sinks,
               Events& events);

  // The descriptor that becomes a worker's stream: a file, the launcher's own, or a pipe to a relay.
  UniqueFd open(int local_rank, Stream stream);

  // An event About::stream with this index.
  void read(std::size_t index);
  // Writes what can be written; stops reading from workers while a reader is slow.
  void flow();
  bool paused() const { return paused_; }
  // Nobody reads standard output any more, or it can't be written.
  bool broken() const { return sinks_[0].broken(); }
  // Nothing is open, nothing waits to be written.
  bool finished() const;
  // All of the job's processes are gone; a pipe that is still open belongs to one that we may not kill.
  void close_streams_of_strangers();

  // A worker's last lines: from memory, or from the files where a stream went straight there.
  std::vector<std::string> last_lines(int local_rank) const;

 private:
  std::string log_file(int local_rank, Stream stream) const;
  void close(std::size_t index);

  const LaunchOptions& options_;
  int first_rank_;
  std::string log_folder_;
  Sinks& sinks_;
  Events& events_;
  std::vector<LastLines> last_;  // by local rank
  std::vector<Relay> relays_;
  std::array<bool, 2> sink_watched_{};
  bool paused_ = false;  // the workers' output is not read for now
};

}  // namespace lockstep::launcher
