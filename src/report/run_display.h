// What a training run shows: a progress bar on a terminal, plain lines elsewhere, one line an epoch, the
// figures at the end. It renders events, which come from rank 0:
//   begin step epoch note checkpoint stopped done through error
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launch/worker_events.h"
#include "report/printer.h"
#include "report/progress.h"

namespace lockstep {

// What standard output is for.
enum class Show : unsigned char {
  text,
  json,
  nothing,  // only progress, on standard error
};

class RunDisplay {
 public:
  explicit RunDisplay(Show show);

  void handle(const nlohmann::ordered_json& event);
  // Somebody told this process to stop: says what happens now, unless it is the same telling once more.
  void told_to_stop(int signal);
  // Asked while nobody reads what is shown: then it is dropped, so that the run can be stopped.
  void give_up_when(std::function<bool()> told_to_stop) { printer_.give_up_when(std::move(told_to_stop)); }
  // Takes the progress bar away.
  void finish() { progress_.clear(); }

  int stopped_by() const { return stopped_by_; }  // the signal after which a checkpoint was written; 0: none
  bool done() const { return done_; }
  bool begun() const { return begun_; }              // there are steps, which a stop may lose
  bool reader_gone() const { return reader_gone_; }  // nobody reads standard output any more
  // "the newest checkpoint is …; to resume: …", for a run that ended before its time; empty before it began,
  // and where going on would not help.
  std::string hint() const;
  std::vector<WorkerError> errors;  // in the order in which they came

 private:
  void begin(const nlohmann::ordered_json& event);
  void step(const nlohmann::ordered_json& event);
  void epoch(const nlohmann::ordered_json& event);
  void finished(const nlohmann::ordered_json& event);
  void through(const nlohmann::ordered_json& event);
  void line(const std::string& text);  // to standard output, or standard error with --json
  void print(std::FILE* to, const std::string& text);
  void note(const std::string& text);  // to standard error

  Show show_;
  bool terminal_;
  bool colours_;
  Progress progress_;
  Printer printer_;
  std::int64_t last_plain_ns_ = 0;
  int stopped_by_ = 0;
  std::int64_t told_ns_ = 0;  // when it was told to stop first
  std::string checkpoint_;    // the newest
  std::string resume_;        // the command that goes on
  bool begun_ = false;
  bool done_ = false;
  bool reader_gone_ = false;
};

// "1:23", "2:03:04"
std::string format_duration(double seconds);

}  // namespace lockstep
