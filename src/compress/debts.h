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
  // Of `entries` those that are owed. What the mean itself owes, the same on every rank ("server/fc.weight"),
  // the first subtree's worker pays: `has_first`, this one.
  void add(const Exchange::State& entries, bool has_first);
  // On the worker that speaks for its subtrees, in front of the exchange. A sum that is not finite is no use:
  // what is owed waits for the next.
  void pay(const Bucket& bucket);
  void clear() { owed_.clear(); }

 private:
  void owe(const std::string& key, const torch::Tensor& tensor);

  Exchange::State owed_;
};

}  // namespace lockstep::compress
