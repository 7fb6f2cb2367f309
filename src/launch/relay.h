// From a worker's pipe to the console, to a file and to the memory of its last lines.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "launch/sink.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

// The last lines of one worker, both streams in the order they came, without the frames of a libtorch error's
// backtrace: what it is about stands in front of them. Bounded.
class LastLines {
 public:
  void add(std::string_view line);
  std::vector<std::string> take() const { return {lines_.begin(), lines_.end()}; }

 private:
  static constexpr std::size_t kMostLines = 20;
  static constexpr std::size_t kMostBytes = 400;  // a line; the rest is cut and shown as "…"
  std::deque<std::string> lines_;
};

// One stream of one worker. Whole lines reach the sink in one piece, so lines of different workers never
// mix. A line longer than kMostLine is passed on in pieces of that size, each a line of its own; a last
// line without an end gets one. In raw form (no prefix wanted) bytes pass as they are, and so they do into
// the file, always.
class Relay {
 public:
  enum class Form { lines, raw, none };
  struct Options {
    UniqueFd pipe = {};    // read end
    UniqueFd file = {};    // empty: no copy in a file
    Sink* sink = nullptr;  // used unless the form is none
    Form form = Form::lines;
    std::string prefix = {};
    LastLines* last = nullptr;
  };
  explicit Relay(Options options);

  // Reads what is there, at most one block. False at the end of the stream.
  bool read_some();
  // The stream is over: passes on an unfinished line.
  void finish();

  int fd() const { return options_.pipe.get(); }
  bool open() const { return static_cast<bool>(options_.pipe); }

  static constexpr std::size_t kMostLine = std::size_t{64} << 10;

 private:
  void take(std::string_view bytes);
  void line(std::string_view text);

  Options options_;
  std::string partial_;
};

}  // namespace lockstep::launcher
