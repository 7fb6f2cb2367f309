// `shapes`: ten classes of 32 × 32 drawings made by the program, for when there is no data at hand. Position,
// scale, rotation and colours are random, there is clutter and noise: a linear model is lost, a small ResNet
// learns it within minutes.
//
// They are written in CIFAR-10's binary format, so read_cifar10 reads them. Image i of a split is a function
// of (seed, split, i) and of nothing else.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "lockstep/data/files.h"

namespace lockstep {

constexpr std::array<std::string_view, 10> kShapeNames = {"disc", "square", "triangle", "star",  "cross",
                                                          "ring", "bars",   "crescent", "arrow", "heart"};

struct ShapesOptions {
  std::int64_t train = 10'000;  // images, 5 to 500000
  std::int64_t test = 2'000;    // images, 1 to 100000
  std::uint64_t seed = 0;
  bool operator==(const ShapesOptions&) const = default;
};

// Draws image `index` of a split: 3 × 32 × 32 bytes. Gives its class, index mod 10.
int draw_shape(std::uint64_t seed, Split split, std::int64_t index, std::span<std::uint8_t> pixels);

// How long a process waits for another one of its user that makes the same files.
struct ShapesWait {
  std::chrono::milliseconds say_after = std::chrono::seconds(10);  // who it is, in a warning
  std::chrono::milliseconds give_up_after =
      std::chrono::minutes(10);  // beside 5 ms an image: it may be stopped (Ctrl-Z)
};

// Makes the files in `folder`, or takes those that are there with the same options; gives `folder`. Several
// processes may ask at once: those of one user wait for the first, and the first of several users wins. The
// folder appears whole or not at all: a kill leaves a hidden staging folder and a hidden lock, which the next
// maker removes. Throws UsageError when the folder holds something else, SystemError (a full disk, a wait
// that took too long) after removing what it had begun.
std::filesystem::path make_shapes(const std::filesystem::path& folder, ShapesOptions options = {},
                                  ShapesWait wait = {});

}  // namespace lockstep
