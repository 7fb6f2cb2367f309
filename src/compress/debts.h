// What is owed of parameters whose next method feeds no errors back, or is none: it is added to the next sum
// that they have. With its sign changed, by subtree and parameter ("owed/3/fc.weight"), as a MemoryBook has
// it.
#pragma once

#include <map>
#include <string>

#include "lockstep/grad/exchange.h"

namespace lockstep::compress {

class Debts {
 public:
  // Of `entries` those that are owed.
  void add(const Exchange::State& entries);
  // On the worker that speaks for its subtrees, in front of the exchange.
  void pay(const Bucket& bucket);
  void clear() { owed_.clear(); }
  bool empty() const { return owed_.empty(); }

 private:
  Exchange::State owed_;
};

}  // namespace lockstep::compress
