// Throws bytes at the reader of MNIST's files: two idx files that fit each other are taken, everything else
// is refused with a UsageError of one line.
//
// Input: two bytes, the length of the file of images (or all there is, where that is less); that file; the
// labels.
#include <algorithm>
#include <string_view>

#include "base/fuzz_driver.h"
#include "data/mnist.h"
#include "lockstep/base/error.h"

void lockstep::fuzz::one(std::string_view input) {
  if (input.size() < 2) return;
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(input[i]));
  };
  const std::size_t length = std::min(byte(0) * 256 + byte(1), input.size() - 2);
  const std::string_view pixels = input.substr(2, length);
  const std::string_view labels = input.substr(2 + length);
  Images images;
  try {
    images =
        parse_mnist({"images", {pixels.begin(), pixels.end()}}, {"labels", {labels.begin(), labels.end()}});
  } catch (const UsageError& refusal) {
    require(std::string_view(refusal.what()).find('\n') == std::string_view::npos,
            "a refusal of several lines");
    return;
  }
  accepted = true;
  require(images.pixels.size() == images.labels.size() * 784 && !images.labels.empty(),
          "labels and pixels do not fit");
  require(std::ranges::all_of(images.labels, [&](int label) { return label < images.classes; }),
          "a label above 9");
  require(pixels.size() == 16 + images.pixels.size() && labels.size() == 8 + images.labels.size(),
          "bytes left over");
}

std::vector<std::string> lockstep::fuzz::seeds() {
  const auto files = [](int count) {
    const std::string number = {0, 0, 0, static_cast<char>(count)};
    const std::string side = {0, 0, 0, 28};
    const std::string pixels = std::string{0, 0, 8, 3} + number + side + side +
                               std::string(static_cast<std::size_t>(count) * 784, '\x7f');
    const std::string labels =
        std::string{0, 0, 8, 1} + number + std::string(static_cast<std::size_t>(count), '\5');
    return std::string{static_cast<char>(pixels.size() >> 8), static_cast<char>(pixels.size() & 255)} +
           pixels + labels;
  };
  return {files(1), files(2), files(7)};
}
