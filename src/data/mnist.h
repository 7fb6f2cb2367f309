// MNIST's idx files as bytes, for the reader and its tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lockstep/data/files.h"

namespace lockstep {

constexpr std::int64_t kMnistMostImages = 1'000'000;
constexpr int kMnistSide = 28;

// One idx file: what is in it, and what messages call it.
struct IdxFile {
  std::filesystem::path name;
  std::vector<std::uint8_t> bytes;
};

// Throws UsageError.
Images parse_mnist(IdxFile images, IdxFile labels);

}  // namespace lockstep
