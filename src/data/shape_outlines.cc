#include "data/shape_outlines.h"

#include <array>
#include <cmath>

namespace lockstep {
namespace {

bool in_disc(double x, double y, double radius) { return x * x + y * y < radius * radius; }

bool disc(double x, double y) { return in_disc(x, y, 0.85); }

bool square(double x, double y) { return std::fabs(x) < 0.75 && std::fabs(y) < 0.75; }

bool triangle(double x, double y) { return y > -0.5 && 1.7320508075688772 * std::fabs(x) + y < 1; }

// A pentagram is bounded by five lines; a point of it is beyond one of them at most.
bool star(double x, double y) {
  constexpr double kLine = 0.36;  // the lines' distance from the middle
  constexpr std::array<std::array<double, 2>, 5> kNormals = {{{0, -1},
                                                              {0.9510565162951535, -0.3090169943749474},
                                                              {0.5877852522924731, 0.8090169943749475},
                                                              {-0.5877852522924731, 0.8090169943749475},
                                                              {-0.9510565162951535, -0.3090169943749474}}};
  int beyond = 0;
  for (const auto& [nx, ny] : kNormals) beyond += nx * x + ny * y > kLine ? 1 : 0;
  return beyond <= 1;
}

bool cross(double x, double y) {
  const double a = std::fabs(x);
  const double b = std::fabs(y);
  return (a < 0.28 && b < 0.92) || (b < 0.28 && a < 0.92);
}

bool ring(double x, double y) { return in_disc(x, y, 0.92) && !in_disc(x, y, 0.5); }

bool bars(double x, double y) { return std::fabs(x) < 0.85 && std::fabs(y) > 0.22 && std::fabs(y) < 0.68; }

bool crescent(double x, double y) { return in_disc(x, y, 0.95) && !in_disc(x - 0.48, y, 0.72); }

bool arrow(double x, double y) {
  const bool shaft = y > -0.95 && y < 0.2 && std::fabs(x) < 0.2;
  const bool head = y > 0 && std::fabs(x) < 0.8 * (1 - y);
  return shaft || head;
}

bool heart(double x, double y) {
  const double a = std::fabs(x);
  const bool lobe = in_disc(a - 0.42, y - 0.35, 0.47);
  const bool tip = y < 0.2 && a < 0.75 * (y + 0.95);
  const bool middle = y >= 0.2 && y < 0.45 && a < 0.42;
  return lobe || tip || middle;
}

}  // namespace

bool inside_shape(int label, double x, double y) {
  constexpr std::array kOutlines = {disc, square, triangle, star, cross, ring, bars, crescent, arrow, heart};
  return kOutlines[static_cast<std::size_t>(label)](x, y);
}

}  // namespace lockstep
