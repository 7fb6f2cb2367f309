// A dataset: examples by number, gathered into a batch.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/random.h"

namespace lockstep {

struct Batch {
  torch::Tensor data;
  torch::Tensor target;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  // The examples `indices` as one batch. With `random`, augmented from that stream; without, as they are.
  // Called from the loader's thread.
  virtual Batch get(std::span<const std::int64_t> indices, RandomStream* random) const = 0;
  // How many parts of the loss one example of the batch counts for (tokens of a text); samples: 1.
  virtual double weight() const { return 1; }

  // What a model for it must take and give, where known: the shape of one example's data, and the number of
  // classes of a target (the vocabulary of a text). Empty and 0: not known.
  virtual std::vector<std::int64_t> shape() const { return {}; }
  virtual std::int64_t classes() const { return 0; }

  // 64 hexadecimal digits that are equal for datasets which give the same examples, wherever their files lie:
  // what a run that is resumed compares. Reads all of it. Empty: not known.
  virtual std::string fingerprint() const { return {}; }
};

}  // namespace lockstep
