// --compress auto: which method, or none, for this model on these links.
//
// The first steps travel as they are. In a few of them every candidate compresses this worker's sums for
// itself: how long that takes, and how far off it is. Then all ranks add up what they found, and in the step
// behind that decide alike, by
//
//   expected time of a step's calls (the group's cost table) + time of encoding and decoding
//
// among those whose relative error is small enough, the dense exchange included. In shared memory nothing is
// ever compressed. What was chosen is kept in the run, and so are its bits from then on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compress/method.h"

namespace lockstep::compress {

class Chooser {
 public:
  static constexpr int kUndecided = -2, kDense = -1;
  static constexpr int kProbes = 3;  // steps that are looked at, behind the first
  static const std::vector<std::string>& candidates();

  explicit Chooser(double max_error) : max_error_(max_error) {}

  int choice() const { return choice_; }
  const std::string& reason() const { return reason_; }
  void choose(int choice, std::string reason);

  // Before the first bucket. `alone`: this worker by itself; `chosen`: what all have agreed to go on with.
  // Undecided, it decides at once where there is nothing to gain, on every rank alike.
  void bind(const Group& group, const Group& alone, int chosen);
  // The largest tensor of a bucket, as one subtree has it.
  void probe(const Flight& flight, std::size_t tensor, const torch::Tensor& parameter);
  // Adds up what all have found. Every rank asks; nobody waits. `dense_s` and `wire_s`: what a step's calls
  // are expected to take, as it is and by candidate, of which rank 0's count; 0: nobody knows, or it makes
  // nothing smaller.
  void ask(const Group& group, double dense_s, const std::vector<double>& wire_s);
  // Once every rank has asked. `elements`: of all parameters.
  void decide(double elements);

 private:
  struct Found {
    double seconds = 0, elements = 0, error = 0, meant = 0;
  };

  double max_error_;
  int choice_ = kUndecided;
  std::string reason_;
  Group alone_;
  std::vector<Found> found_;
  std::shared_ptr<std::vector<double>> sums_;  // of found_, and what rank 0 expects
  Work asked_;
};

}  // namespace lockstep::compress
