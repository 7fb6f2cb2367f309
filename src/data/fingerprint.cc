// What the datasets are, whatever they are called and wherever they lie.
#include <fmt/format.h>

#include <span>
#include <string_view>

#include "lockstep/checkpoint/sha256.h"
#include "lockstep/data/datasets.h"

namespace lockstep {
namespace {

// `how`: the kind of data and every option that decides what is made of the bytes. Its length goes first, so
// that nothing of it can pass for a byte of the data.
std::string fingerprint_of(const std::string& how, std::span<const std::uint8_t> bytes,
                           std::span<const std::uint8_t> more = {}) {
  Sha256 hash;
  hash.update(fmt::format("{} {} {} {}\n", how.size(), how, bytes.size(), more.size()));
  hash.update(std::as_bytes(bytes));
  hash.update(std::as_bytes(more));
  return hash.hex();
}

std::string words(const ImageShape& shape) {
  return fmt::format("{}x{}x{}", shape.channels, shape.height, shape.width);
}

}  // namespace

std::string ImageDataset::fingerprint() const {
  return fingerprint_of(
      fmt::format("images {} classes {} mean {} deviation {} output {} crop {} flip {}", words(images_.shape),
                  images_.classes, fmt::join(options_.mean, " "), fmt::join(options_.deviation, " "),
                  words(options_.output), options_.crop_padding, options_.flip),
      images_.labels, images_.pixels);
}

std::string TextDataset::fingerprint() const {
  return fingerprint_of(fmt::format("text context {}", context_), bytes_);
}

// Its examples are a function of its options.
std::string SyntheticDataset::fingerprint() const {
  return fingerprint_of(
      fmt::format("synthetic {} size {} shape {} classes {} seed {}", static_cast<int>(options_.kind),
                  options_.size, fmt::join(options_.shape, "x"), options_.classes, options_.seed),
      {});
}

}  // namespace lockstep
