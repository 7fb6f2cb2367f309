// Datasets by name.
//
//   auto train = lockstep::open_dataset({.name = "cifar10", .folder = "data"});
//   auto test = lockstep::open_dataset(
//       {.name = "cifar10", .folder = "data", .split = lockstep::Split::test});
//   auto model = lockstep::make_mlp({.inputs = …train->shape()…, .classes = train->classes()});
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

namespace lockstep {

struct DataOptions {
  // cifar10, mnist: their files in `folder`. text: the bytes of a file or of the .txt files of a folder, of
  // which the last tenth is for testing; without a folder, simple sentences are made, whose loss has a known
  // floor. shapes: drawings, made in a folder of their own inside `folder` when
  // they are not there yet. synthetic: random images or vectors of `shape`, or, without one, random tokens of
  // `context`.
  std::string name = "shapes";
  std::filesystem::path folder = {};  // shapes: empty means the cache folder (LOCKSTEP_CACHE_DIR)
  Split split = Split::train;
  std::int64_t context = 128;            // text, synthetic tokens
  std::vector<std::int64_t> shape = {};  // synthetic; mnist: 1 × 28 × 28, or 3 × 32 × 32 when asked
  std::int64_t classes = 0;              // synthetic; 0: 10 of values, 256 of tokens
  // At most so many examples, the first ones; shapes, synthetic, text without a folder: as many are made. 0:
  // all, or 10000 and 2000, of text 2000 and 200.
  std::int64_t train_size = 0;
  std::int64_t test_size = 0;
  std::uint64_t seed = 0;  // of what is made
};

// The names that open_dataset knows.
const std::vector<std::string>& dataset_names();

// Throws UsageError: a name that nobody knows (with those that exist), options that do not fit, bad files.
std::shared_ptr<Dataset> open_dataset(const DataOptions& options);

}  // namespace lockstep
