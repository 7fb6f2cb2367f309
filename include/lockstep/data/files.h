// Readers of data files as they are found in the world. Every byte is treated as hostile: a file is taken
// whole and right, or refused by one line (UsageError) that names it, where it is wrong, and what is
// accepted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace lockstep {

enum class Split : unsigned char { train, test };

// Planes of bytes, rows from the top; for one image: channels, height, width.
struct ImageShape {
  int channels = 3;
  int height = 32;
  int width = 32;
  std::int64_t bytes() const { return std::int64_t{channels} * height * width; }
  bool operator==(const ImageShape&) const = default;
};

// Labelled images in memory, one after the other.
struct Images {
  ImageShape shape;
  int classes = 10;  // every label is below
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  std::int64_t size() const { return static_cast<std::int64_t>(labels.size()); }
};

// CIFAR-10's binary version: data_batch_1.bin … data_batch_5.bin and test_batch.bin, in `folder` or in
// cifar-10-batches-bin inside it. A file holds 1 to 100000 records of a label and 3 × 32 × 32 bytes.
Images read_cifar10(const std::filesystem::path& folder, Split split);

// MNIST's idx files, unpacked: train-images-idx3-ubyte and so on (or train-images.idx3-ubyte), in `folder` or
// in MNIST/raw inside it.
Images read_mnist(const std::filesystem::path& folder, Split split);

// The bytes of a file, or of all .txt files of a folder in the order of their names; 4 GiB at most.
std::vector<std::uint8_t> read_text(const std::filesystem::path& path);

}  // namespace lockstep
