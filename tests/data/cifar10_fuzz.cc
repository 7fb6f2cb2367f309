// Throws bytes at the reader of CIFAR-10's files: whole records are taken as they are, everything else is
// refused with a UsageError of one line.
#include <string_view>

#include "base/fuzz_driver.h"
#include "data/cifar10.h"
#include "lockstep/base/error.h"

void lockstep::fuzz::one(std::string_view input) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  Images images;
  try {
    append_cifar10(images, bytes, "data_batch_1.bin");
  } catch (const UsageError& refusal) {
    require(std::string_view(refusal.what()).find('\n') == std::string_view::npos,
            "a refusal of several lines");
    return;
  }
  accepted = true;
  require(images.size() * kCifarRecordBytes == static_cast<std::int64_t>(input.size()),
          "a record too many or too few");
  require(images.pixels.size() == images.labels.size() * 3072, "labels and pixels do not fit");
  for (std::size_t r = 0; r < images.labels.size(); ++r) {
    const auto record = bytes.subspan(r * kCifarRecordBytes, kCifarRecordBytes);
    require(images.labels[r] == record[0] && images.labels[r] < images.classes, "another label");
    require(std::equal(record.begin() + 1, record.end(),
                       images.pixels.begin() + static_cast<std::ptrdiff_t>(r * 3072)),
            "other pixels");
  }
}

std::vector<std::string> lockstep::fuzz::seeds() {
  const auto record = [](char label) { return label + std::string(kCifarRecordBytes - 1, '\x7f'); };
  return {record(0), record(9), record(3) + record(4) + record(5)};
}
