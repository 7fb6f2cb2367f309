// The datasets that come along: images, text as bytes, and random data of any shape.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

namespace lockstep {

// How bytes become the model's input.
struct ImageOptions {
  // Per channel of the output, of pixels between 0 and 1. Empty: 0 and 1.
  std::vector<double> mean = {};
  std::vector<double> deviation = {};
  // The output's shape. Zero channels: the images' own. A larger one puts the image in the middle of black,
  // and repeats a single channel.
  ImageShape output = {.channels = 0, .height = 0, .width = 0};
  // Augmentation: moved by up to so many pixels each way, black coming in at the edges; mirrored half the
  // time.
  int crop_padding = 4;
  bool flip = true;
};

// data: f32 [batch, channels, height, width], target: i64 [batch].
class ImageDataset final : public Dataset {
 public:
  // Keeps the images as bytes. Throws UsageError when the options do not fit them.
  explicit ImageDataset(Images images, ImageOptions options = {});

  std::int64_t size() const override { return images_.size(); }
  Batch get(std::span<const std::int64_t> indices, RandomStream* random) const override;
  std::vector<std::int64_t> shape() const override;
  std::int64_t classes() const override { return images_.classes; }
  std::string fingerprint() const override;

 private:
  Images images_;
  ImageOptions options_;
  std::vector<float> values_;  // of each byte, 256 a channel
};

// Next-byte prediction: example i is `context` bytes from i × context on, its target the same one byte
// further. data and target: i64 [batch, context]. Nothing to augment.
class TextDataset final : public Dataset {
 public:
  // `loss_floor`: of the text's source, where it is known. Throws UsageError when there is not one example.
  TextDataset(std::vector<std::uint8_t> bytes, std::int64_t context, std::optional<double> loss_floor = {});

  std::int64_t size() const override { return size_; }
  Batch get(std::span<const std::int64_t> indices, RandomStream* random) const override;
  double weight() const override { return static_cast<double>(context_); }
  std::vector<std::int64_t> shape() const override { return {context_}; }
  std::int64_t classes() const override { return 256; }
  std::optional<double> loss_floor() const override { return loss_floor_; }
  std::string fingerprint() const override;

 private:
  std::vector<std::uint8_t> bytes_;
  std::int64_t context_;
  std::optional<double> loss_floor_;
  std::int64_t size_;
};

enum class SyntheticKind : unsigned char {
  values,  // f32, mean 0 and deviation 1, with one class a sample
  tokens,  // i64, with the next token as target
};

struct SyntheticOptions {
  SyntheticKind kind = SyntheticKind::values;
  std::int64_t size = 10'000;
  std::vector<std::int64_t> shape = {3, 32, 32};  // of one example; tokens: {context}
  std::int64_t classes = 10;
  std::uint64_t seed = 0;
};

// Random data for measuring: example i is a function of (seed, i). Nothing can be learnt from it, and nothing
// is augmented.
class SyntheticDataset final : public Dataset {
 public:
  explicit SyntheticDataset(SyntheticOptions options);

  std::int64_t size() const override { return options_.size; }
  Batch get(std::span<const std::int64_t> indices, RandomStream* random) const override;
  double weight() const override;
  std::vector<std::int64_t> shape() const override { return options_.shape; }
  std::int64_t classes() const override { return options_.classes; }
  std::string fingerprint() const override;

 private:
  SyntheticOptions options_;
  std::int64_t numbers_ = 1;  // in one example
};

}  // namespace lockstep
