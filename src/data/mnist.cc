#include "data/mnist.h"

#include <string>
#include <utility>

#include "data/file_bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/data/files.h"

namespace lockstep {
namespace {

std::string image_form() {
  return "an idx file of 1 to " + std::to_string(kMnistMostImages) + " images of 28 × 28 bytes";
}
std::string label_form() {
  return "an idx file of 1 to " + std::to_string(kMnistMostImages) + " labels from 0 to 9";
}

// Big-endian.
std::uint32_t word_at(const std::vector<std::uint8_t>& bytes, std::size_t offset) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i) word = word << 8 | bytes[offset + i];
  return word;
}

// "train-images-idx3-ubyte", or, where only that is there, "train-images.idx3-ubyte".
std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& stem,
                                const std::string& kind) {
  std::error_code ignored;
  auto usual = folder / (stem + "-" + kind);
  auto dotted = folder / (stem + "." + kind);
  if (!std::filesystem::exists(usual, ignored)) {
    if (std::filesystem::exists(dotted, ignored)) return dotted;
    if (const auto packed = usual.string() + ".gz"; std::filesystem::exists(packed, ignored))
      throw UsageError(shown(packed) + " is packed; accepted: the plain file (gunzip it)");
  }
  return usual;
}

// Checks the header, `dims` sizes of which all but the first are kMnistSide, and the file's length; gives the
// count.
std::int64_t check_idx(const std::filesystem::path& file, const std::vector<std::uint8_t>& bytes,
                       unsigned dims, const std::string& accepted) {
  const std::size_t header = 4 + 4 * std::size_t{dims};
  if (bytes.size() < header)
    throw UsageError(shown(file) + " has " + std::to_string(bytes.size()) +
                     " bytes, less than its header of " + std::to_string(header) + "; accepted: " + accepted);
  const std::uint32_t magic = word_at(bytes, 0);
  if (magic != 0x800 + dims)
    throw UsageError(shown(file) + ": magic number " + std::to_string(magic) + " at offset 0, " +
                     std::to_string(0x800 + dims) + " expected; accepted: " + accepted);
  const std::int64_t count = word_at(bytes, 4);
  std::int64_t item = 1;
  for (std::size_t d = 1; d < dims; ++d) {
    const std::uint32_t side = word_at(bytes, 4 + 4 * d);
    if (side != kMnistSide)
      throw UsageError(shown(file) + ": dimension " + std::to_string(d) + " is " + std::to_string(side) +
                       " at offset " + std::to_string(4 + 4 * d) + "; accepted: " + accepted);
    item *= side;
  }
  const auto expected = static_cast<std::int64_t>(header) + count * item;
  if (count == 0 || count > kMnistMostImages || static_cast<std::int64_t>(bytes.size()) != expected)
    throw UsageError(shown(file) + " announces " + std::to_string(count) + " items at offset 4, so " +
                     std::to_string(expected) + " bytes, and has " + std::to_string(bytes.size()) +
                     "; accepted: " + accepted);
  return count;
}

}  // namespace

Images parse_mnist(IdxFile image_file, IdxFile label_file) {
  const std::int64_t count = check_idx(image_file.name, image_file.bytes, 3, image_form());
  const std::int64_t labels = check_idx(label_file.name, label_file.bytes, 1, label_form());
  Images images{.shape = {.channels = 1, .height = kMnistSide, .width = kMnistSide},
                .classes = 10,
                .pixels = std::move(image_file.bytes),
                .labels = std::move(label_file.bytes)};
  images.pixels.erase(images.pixels.begin(), images.pixels.begin() + 16);
  images.labels.erase(images.labels.begin(), images.labels.begin() + 8);
  if (labels != count)
    throw UsageError(shown(label_file.name) + " has " + std::to_string(labels) + " labels for the " +
                     std::to_string(count) + " images of " + shown(image_file.name) +
                     "; accepted: one label an image");
  for (std::int64_t i = 0; i < labels; ++i)
    if (const int label = images.labels[static_cast<std::size_t>(i)]; label >= images.classes)
      throw UsageError(shown(label_file.name) + ": label " + std::to_string(label) + " of image " +
                       std::to_string(i) + " (offset " + std::to_string(8 + i) + "); accepted: 0 to 9");
  return images;
}

Images read_mnist(const std::filesystem::path& folder, Split split) {
  constexpr auto kAccepted =
      "a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
      "t10k-labels-idx1-ubyte, or with MNIST/raw";
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    throw UsageError("no folder " + shown(folder) + "; accepted for MNIST: " + kAccepted);
  const auto raw = folder / "MNIST" / "raw";
  const auto where = std::filesystem::is_directory(raw, ignored) ? raw : folder;
  const std::string stem = split == Split::train ? "train" : "t10k";

  IdxFile images{find_file(where, stem + "-images", "idx3-ubyte"), {}};
  images.bytes = read_whole_file(images.name, 16 + kMnistMostImages * kMnistSide * kMnistSide, image_form());
  IdxFile labels{find_file(where, stem + "-labels", "idx1-ubyte"), {}};
  labels.bytes = read_whole_file(labels.name, 8 + kMnistMostImages, label_form());
  return parse_mnist(std::move(images), std::move(labels));
}

}  // namespace lockstep
