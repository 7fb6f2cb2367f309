#include "data/cifar10.h"

#include <string>

#include "data/file_bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/data/files.h"

namespace lockstep {
namespace {

std::string accepted_file() {
  return "1 to " + std::to_string(kCifarMostRecords) + " records of " + std::to_string(kCifarRecordBytes) +
         " bytes (a label from 0 to 9 and 3 × 32 × 32 pixels)";
}

void append_file(Images& images, const std::filesystem::path& file) {
  append_cifar10(images, read_whole_file(file, kCifarMostRecords * kCifarRecordBytes, accepted_file()), file);
}

}  // namespace

void append_cifar10(Images& images, std::span<const std::uint8_t> bytes, const std::filesystem::path& file) {
  const std::string accepted = accepted_file();
  const auto size = static_cast<std::int64_t>(bytes.size());
  const std::int64_t records = size / kCifarRecordBytes;
  if (size == 0) throw UsageError(shown(file) + " is empty; accepted: " + accepted);
  if (size % kCifarRecordBytes != 0)
    throw UsageError(shown(file) + " has " + std::to_string(size) +
                     " bytes and ends in the middle of record " + std::to_string(records) + " (at offset " +
                     std::to_string(records * kCifarRecordBytes) + "); accepted: " + accepted);
  for (std::int64_t r = 0; r < records; ++r) {
    const auto* const record = bytes.data() + r * kCifarRecordBytes;
    if (*record >= images.classes)
      throw UsageError(shown(file) + ": label " + std::to_string(*record) + " in record " +
                       std::to_string(r) + " (offset " + std::to_string(r * kCifarRecordBytes) +
                       "); accepted: 0 to 9");
    images.labels.push_back(*record);
    images.pixels.insert(images.pixels.end(), record + 1, record + kCifarRecordBytes);
  }
}

std::string cifar_train_file(int number) { return "data_batch_" + std::to_string(number) + ".bin"; }

Images read_cifar10(const std::filesystem::path& folder, Split split) {
  constexpr auto kInner = "cifar-10-batches-bin";
  constexpr auto kAccepted =
      "a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin, or with cifar-10-batches-bin";
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    throw UsageError("no folder " + shown(folder) + "; accepted for CIFAR-10: " + kAccepted);
  const bool inside = std::filesystem::is_directory(folder / kInner, ignored) &&
                      !std::filesystem::exists(folder / kCifarTestFile, ignored);
  const auto where = inside ? folder / kInner : folder;

  Images images;
  if (split == Split::test) {
    append_file(images, where / kCifarTestFile);
  } else {
    for (int i = 1; i <= kCifarTrainFiles; ++i) append_file(images, where / cifar_train_file(i));
  }
  return images;
}

}  // namespace lockstep
