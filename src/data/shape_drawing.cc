// Only +, −, ×, ÷ and square roots are used here, and no contraction (see CMakeLists.txt): they are exact to
// the last bit on every machine, so the drawings are the same everywhere.
#include <algorithm>
#include <array>
#include <cmath>

#include "data/shape_outlines.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/data/shapes.h"

namespace lockstep {
namespace {

constexpr int kSide = 32;
constexpr int kSamples = 4;  // a pixel's coverage is taken at 4 × 4 points

using Colour = std::array<double, 3>;  // 0 to 255
struct Point {
  double x = 0;
  double y = 0;
};
constexpr std::size_t kPixels = std::size_t{kSide} * kSide;
using Canvas = std::array<Colour, kPixels>;

Colour& pixel_at(Canvas& canvas, int x, int y) {
  return canvas[static_cast<std::size_t>(y) * kSide + static_cast<std::size_t>(x)];
}

Colour random_colour(RandomStream& random) {
  return {random.uniform(0, 255), random.uniform(0, 255), random.uniform(0, 255)};
}

double distance(const Colour& a, const Colour& b) {
  double sum = 0;
  for (std::size_t c = 0; c < 3; ++c) sum += (a[c] - b[c]) * (a[c] - b[c]);
  return std::sqrt(sum);
}

// A colour at least `least` away from `other`, so that a shape can be seen.
Colour contrasting_colour(RandomStream& random, const Colour& other, double least) {
  while (true)
    if (const Colour colour = random_colour(random); distance(colour, other) >= least) return colour;
}

// A unit vector, all directions equally likely: a point of the disc, normalised.
Point random_direction(RandomStream& random) {
  while (true) {
    const Point p{random.uniform(-1, 1), random.uniform(-1, 1)};
    const double square = p.x * p.x + p.y * p.y;
    if (square > 1 || square < 0.01) continue;
    const double length = std::sqrt(square);
    return {p.x / length, p.y / length};
  }
}

// A unit vector up to 30 degrees from the x axis, to either side.
Point random_tilt(RandomStream& random) {
  const double slope = random.uniform(-0.58, 0.58);
  const double length = std::sqrt(1 + slope * slope);
  return {1 / length, slope / length};
}

void blend(Colour& pixel, const Colour& colour, double coverage) {
  for (std::size_t c = 0; c < 3; ++c) pixel[c] += (colour[c] - pixel[c]) * coverage;
}

// One colour that changes a little from one side to the other.
void paint_background(Canvas& canvas, RandomStream& random, const Colour& colour) {
  const Point direction = random_direction(random);
  const double slope = random.uniform(0, 1.2);
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) {
      const double shift = slope * (direction.x * (x - 15.5) + direction.y * (y - 15.5));
      for (std::size_t c = 0; c < 3; ++c) pixel_at(canvas, x, y)[c] = colour[c] + shift;
    }
}

// A stroke with round ends; of length zero it is a blob.
void paint_stroke(Canvas& canvas, Point from, Point to, double radius, const Colour& colour) {
  const Point along{to.x - from.x, to.y - from.y};
  const double square = along.x * along.x + along.y * along.y;
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) {
      const Point p{x - from.x, y - from.y};
      const double t = square > 0 ? std::clamp((p.x * along.x + p.y * along.y) / square, 0.0, 1.0) : 0;
      const double dx = p.x - t * along.x;
      const double dy = p.y - t * along.y;
      const double coverage = std::clamp(radius + 0.5 - std::sqrt(dx * dx + dy * dy), 0.0, 1.0);
      if (coverage > 0) blend(pixel_at(canvas, x, y), colour, coverage);
    }
}

void paint_clutter(Canvas& canvas, RandomStream& random) {
  const std::uint64_t strokes = random.below(3);
  for (std::uint64_t i = 0; i < strokes; ++i) {
    const Point from{random.uniform(0, 31), random.uniform(0, 31)};
    const Point direction = random_direction(random);
    const double length = random.uniform(4, 14);
    const double radius = random.uniform(0.4, 0.9);
    paint_stroke(canvas, from, {from.x + length * direction.x, from.y + length * direction.y}, radius,
                 random_colour(random));
  }
  const std::uint64_t blobs = random.below(3);
  for (std::uint64_t i = 0; i < blobs; ++i) {
    const Point at{random.uniform(0, 31), random.uniform(0, 31)};
    const double radius = random.uniform(0.6, 1.8);
    paint_stroke(canvas, at, at, radius, random_colour(random));
  }
}

void paint_shape(Canvas& canvas, RandomStream& random, int label, const Colour& colour) {
  const double scale = random.uniform(10, 13);  // pixels
  const double aspect = random.uniform(0.88, 1.14);
  const Point middle{15.5 + random.uniform(-2, 2), 15.5 + random.uniform(-2, 2)};
  const Point turn = random_tilt(random);
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) {
      const double reach = 1.4 * scale;  // no outline goes further
      if (std::fabs(x - middle.x) > reach || std::fabs(y - middle.y) > reach) continue;
      int hits = 0;
      for (int row = 0; row < kSamples; ++row)
        for (int column = 0; column < kSamples; ++column) {
          const double px = x + (column + 0.5) / kSamples - 0.5 - middle.x;
          const double py = y + (row + 0.5) / kSamples - 0.5 - middle.y;
          const double u = (turn.x * px + turn.y * py) / (scale * aspect);
          const double v = (turn.y * px - turn.x * py) * aspect / scale;  // upwards
          hits += inside_shape(label, u, v) ? 1 : 0;
        }
      if (hits > 0) blend(pixel_at(canvas, x, y), colour, double(hits) / (kSamples * kSamples));
    }
}

// About normal, deviation 1: a sum of four uniform numbers of 16 bits each.
double noise(RandomStream& random) {
  const std::uint64_t bits = random.next();
  const auto sum =
      static_cast<double>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
  return (sum / 65536 - 2) * 1.7320508075688772;
}

}  // namespace

int draw_shape(std::uint64_t seed, Split split, std::int64_t index, std::span<std::uint8_t> pixels) {
  constexpr std::uint64_t kStream = 0x73'68'61'70'65'73;  // "shapes": apart from every other use of the seed
  if (index < 0 || pixels.size() != 3 * kPixels)
    throw UsageError("draw_shape: index " + std::to_string(index) + " into " + std::to_string(pixels.size()) +
                     " bytes; accepted: index 0 or more, 3072 bytes");
  RandomStream random(mix_bits(seed ^ kStream), static_cast<std::uint64_t>(split),
                      static_cast<std::uint64_t>(index));
  const auto label = static_cast<int>(index % static_cast<std::int64_t>(kShapeNames.size()));

  Canvas canvas;
  const Colour background = random_colour(random);
  paint_background(canvas, random, background);
  paint_clutter(canvas, random);
  paint_shape(canvas, random, label, contrasting_colour(random, background, 180));
  const double deviation = random.uniform(2, 8);
  for (std::size_t c = 0; c < 3; ++c)
    for (std::size_t i = 0; i < canvas.size(); ++i)
      pixels[c * canvas.size() + i] =
          static_cast<std::uint8_t>(std::clamp(canvas[i][c] + deviation * noise(random) + 0.5, 0.0, 255.0));
  return label;
}

}  // namespace lockstep
