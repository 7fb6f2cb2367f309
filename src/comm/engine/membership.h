// Who forms a group, as one of its members knows it.
#pragma once

#include <string>

#include "comm/call/rank_names.h"

namespace lockstep {

struct Membership {
  std::string group = "world";  // what tells it from the job's other groups; its name
  int rank = 0;
  int size = 1;
  std::string job;            // the same on all members
  std::string launcher;       // Identity::launcher
  bool whole_job = true;      // its ranks are those that the launcher gave
  bool one_machine = true;    // where false nobody knows before they meet
  int ranks_here = 1;         // that share this machine's processors, about
  int node = -1;              // these are the ranks of this node of a larger group; -1: of the whole group
  std::string endpoint = {};  // "host:port" where rank 0 listens; empty: what the launcher says
  RankNames names = {};       // what they are called in that larger group; none: by their numbers

  // For people: "job 7", "job 7, group second".
  std::string label() const { return whole_job ? job : job + ", group " + group; }
  std::string call() const { return whole_job ? "init()" : "form_group() of " + group; }
  RankNames rank_names() const { return names.size() == 0 ? RankNames::plain(group, size) : names; }
};

}  // namespace lockstep
