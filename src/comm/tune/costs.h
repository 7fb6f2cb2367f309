// What this machine's channel costs: α (latency), β (seconds a byte) and γ (reduction), measured by
// calibrate.cc or, until then, the built-in guesses below.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep {

// Seconds a byte, as a function of how many bytes are at work in all (cache or memory). Between the
// points: linear in the logarithm of the size; outside: the nearest point.
class Curve {
 public:
  Curve() = default;
  Curve(std::vector<std::pair<double, double>> points)
      : points_(std::move(points)) {}  // NOLINT: a list of points
  double at(double bytes) const;
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;  // (bytes, value), sizes rising
};

struct Costs {
  double barrier_s = 2e-6;                                   // α of meeting
  double message_s = 2e-6;                                   // α of a message
  Curve send = Curve({{65536, 1.2e-10}, {1e9, 3e-10}});      // β of the channel, per byte sent
  Curve copy = Curve({{65536, 0.4e-10}, {1e9, 1.5e-10}});    // β of memory, per byte read or written
  Curve reduce = Curve({{65536, 0.5e-10}, {1e9, 1.5e-10}});  // γ, per byte read or written
  double crowding = 1;  // ranks per core, at least 1: bytes take that much longer
};

}  // namespace lockstep
