#include <string>

#include "data/file_bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/data/files.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostImages = 1'000'000;
constexpr int kSide = 28;

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

// Checks the header, `dims` sizes of which all but the first are kSide, and the file's length; gives the
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
    if (side != kSide)
      throw UsageError(shown(file) + ": dimension " + std::to_string(d) + " is " + std::to_string(side) +
                       " at offset " + std::to_string(4 + 4 * d) + "; accepted: " + accepted);
    item *= side;
  }
  const auto expected = static_cast<std::int64_t>(header) + count * item;
  if (count == 0 || count > kMostImages || static_cast<std::int64_t>(bytes.size()) != expected)
    throw UsageError(shown(file) + " announces " + std::to_string(count) + " items at offset 4, so " +
                     std::to_string(expected) + " bytes, and has " + std::to_string(bytes.size()) +
                     "; accepted: " + accepted);
  return count;
}

}  // namespace

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

  Images images{
      .shape = {.channels = 1, .height = kSide, .width = kSide}, .classes = 10, .pixels = {}, .labels = {}};
  const auto image_file = find_file(where, stem + "-images", "idx3-ubyte");
  const std::string image_form =
      "an idx file of 1 to " + std::to_string(kMostImages) + " images of 28 × 28 bytes";
  images.pixels = read_whole_file(image_file, 16 + kMostImages * kSide * kSide, image_form);
  const std::int64_t count = check_idx(image_file, images.pixels, 3, image_form);
  images.pixels.erase(images.pixels.begin(), images.pixels.begin() + 16);

  const auto label_file = find_file(where, stem + "-labels", "idx1-ubyte");
  const std::string label_form = "an idx file of 1 to " + std::to_string(kMostImages) + " labels from 0 to 9";
  images.labels = read_whole_file(label_file, 8 + kMostImages, label_form);
  const std::int64_t labels = check_idx(label_file, images.labels, 1, label_form);
  images.labels.erase(images.labels.begin(), images.labels.begin() + 8);

  if (labels != count)
    throw UsageError(shown(label_file) + " has " + std::to_string(labels) + " labels for the " +
                     std::to_string(count) + " images of " + shown(image_file) +
                     "; accepted: one label an image");
  for (std::int64_t i = 0; i < labels; ++i)
    if (const int label = images.labels[static_cast<std::size_t>(i)]; label >= images.classes)
      throw UsageError(shown(label_file) + ": label " + std::to_string(label) + " of image " +
                       std::to_string(i) + " (offset " + std::to_string(8 + i) + "); accepted: 0 to 9");
  return images;
}

}  // namespace lockstep
