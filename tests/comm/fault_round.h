// One round of the fault test: starts the ranks, commits the plan's fault, hears them out, and asks whether
// each saw what it should have.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/free_port.h"
#include "comm/fault_plan.h"
#include "comm/fault_worker.h"
#include "comm/process_ranks.h"

namespace lockstep::testing {

// A variable by which the workers of this run of the test are known, also those that outlive what started
// them.
inline constexpr const char* kMark = "FAULT_TEST_RUN";

struct FaultSettings {
  std::uint64_t seed = 1;
  int first = 0;
  int rounds = 66;
  std::string engine = "shm";
  bool wires() const { return engine != "shm"; }
};

struct Figures {
  int rounds = 0;
  std::vector<double> latency_ms;  // of every survivor
};

std::set<std::string> names_in(const std::filesystem::path& dir);

// A folder of its own, gone with the object.
struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-fault-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder");
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

class Round {
 public:
  Round(const FaultSettings& settings, int number, Figures& figures)
      : settings_(settings),
        number_(number),
        plan_(plan_of(settings.seed, number)),
        figures_(figures),
        ranks_(options()) {}

  void run();
  // Nothing was wrong but that somebody noticed late, or missed a survivor that was late: how; empty: it was
  // not so. A busy machine may do that to one round.
  const std::string& how_late() const { return how_late_; }
  bool late() const { return !how_late_.empty(); }

 private:
  ProcessRanks::Options options() const;
  std::chrono::seconds init_timeout() const;
  void show() const;
  // Has this rank said a line that starts so?
  bool said(int rank, const std::string& start) const;
  // Will this rank report an error in the end?
  bool speaks(int rank) const;
  bool from_outside() const;
  void inject();
  bool hear_everybody();
  std::string unheard() const;

  void check_end(int rank) const;
  // When the fault was committed, by whoever did.
  std::int64_t fault_time() const;
  void check_rank(int rank);
  void check_error(int rank, const Report& report);
  // Did it wait for somebody in another group than `group`?
  bool held_up(int rank, const std::string& group, int steps) const;
  bool gave_up(int rank) const;
  void check_init_error(const Report& report);
  void check_latency(int rank, const Report& report, bool first);
  // What a dump says of this rank if it may be the reason; none: it may not.
  std::optional<std::string> told_of(int rank) const;
  void check_dumps() const;
  void expect_in_time(bool in_time, const std::string& what);

  const FaultSettings& settings_;
  int number_;
  Plan plan_;
  std::uint16_t port_ = free_port();  // where rank 0 listens, over wires
  Figures& figures_;
  Folder dumps_;
  ProcessRanks ranks_;
  std::int64_t start_ns_ = 0;
  std::int64_t fault_ns_ = 0;
  std::string how_late_;
};

}  // namespace lockstep::testing
