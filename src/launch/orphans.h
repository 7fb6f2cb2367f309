// What workers started and left without a parent, wherever it went.
#pragma once

#include <sys/types.h>

#include <vector>

namespace lockstep::launcher {

// While it lives a process whose parent has died becomes a child of this one, if one of its forefathers is
// one: the kernel's sub-reaper. It may have left its process group and its environment; its parent it can't
// choose.
class Orphans {
 public:
  Orphans();
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // Children that this process started, and those that it had before, are nobody's orphans.
  void own(pid_t child) { own_.push_back(child); }
  void disown(pid_t child) { std::erase(own_, child); }

  // Reaps those that have ended.
  void reap();
  // Kills all, and what becomes an orphan by that, until none is left that may be killed.
  void kill();

 private:
  std::vector<pid_t> list() const;

  std::vector<pid_t> own_;
  int was_subreaper_ = 0;
};

}  // namespace lockstep::launcher
