// A dataset: examples by number, gathered into a batch.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep {

// What examples have, example by example along the first dimension.
struct Batch {
  torch::Tensor data;
  torch::Tensor target;
  std::map<std::string, torch::Tensor> more = {};  // whatever else there is: a mask, a second input

  // "data", "target", or one of `more`. Throws UsageError that lists what there is.
  const torch::Tensor& operator[](const std::string& name) const;
};

// What a dataset threw while a loader asked it, with the examples that were asked for: the one that can't be
// read by itself either, or, where each can, all of the batch. std::rethrow_if_nested gives the dataset's own
// exception.
class DatasetError : public SystemError, public std::nested_exception {
 public:
  DatasetError(std::vector<std::int64_t> examples, const std::string& message)
      : SystemError(message), examples_(std::move(examples)) {}
  const std::vector<std::int64_t>& examples() const noexcept { return examples_; }

 private:
  std::vector<std::int64_t> examples_;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  // The examples `indices` as one batch. With `random`, augmented from that stream; without, as they are.
  // Called from the loader's thread; from several at once where LoaderOptions::threads says so.
  virtual Batch get(std::span<const std::int64_t> indices, RandomStream* random) const = 0;
  // How many parts of the loss one example of the batch counts for (tokens of a text); samples: 1.
  virtual double weight() const { return 1; }
  // Where that differs from example to example (padding, importance): one number each, 0 or more, and none
  // above 0 that as f32 is 0 or infinite. Every worker asks for the examples of every lane, so the answer
  // comes from memory, and it is the same each time. Empty: they all weigh weight().
  virtual std::vector<double> weights(std::span<const std::int64_t> /*indices*/) const { return {}; }

  // What a model for it must take and give, where known: the shape of one example's data, and the number of
  // classes of a target (the vocabulary of a text). Empty and 0: not known.
  virtual std::vector<std::int64_t> shape() const { return {}; }
  virtual std::int64_t classes() const { return 0; }

  // The least mean loss (cross-entropy, in nats a part of the loss) that any model can have on examples that
  // it has not learnt from, where that is known. Of examples that it has learnt by heart it may have less.
  virtual std::optional<double> loss_floor() const { return {}; }

  // 64 hexadecimal digits that are equal for datasets which give the same examples, wherever their files lie:
  // what a run that is resumed compares. Reads all of it. Empty: not known.
  virtual std::string fingerprint() const { return {}; }
};

}  // namespace lockstep
