// The readers: what is right is read to the last byte, what is wrong is named.
#include "lockstep/data/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "comm/expect_error.h"
#include "data/temp_folder.h"

namespace lockstep {
namespace {

using testing::bytes_of;
using testing::cifar_records;
using testing::expect_error;
using testing::idx_file;
using testing::TempFolder;
using testing::write_bytes;
using testing::write_cifar;
using testing::write_mnist;

TEST(Cifar10, ReadsAllFilesInOrder) {
  const TempFolder temp;
  write_cifar(temp.path(), 3);
  const Images train = read_cifar10(temp.path(), Split::train);
  ASSERT_EQ(train.size(), 15);
  EXPECT_EQ(train.shape, (ImageShape{3, 32, 32}));
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(train.labels[static_cast<std::size_t>(i)], i % 10);
    EXPECT_EQ(train.pixels[static_cast<std::size_t>(i) * 3072], i);
    EXPECT_EQ(train.pixels[static_cast<std::size_t>(i) * 3072 + 3071], i);
  }
  const Images test = read_cifar10(temp.path(), Split::test);
  ASSERT_EQ(test.size(), 3);
  EXPECT_EQ(test.pixels.front(), 100);
}

TEST(Cifar10, FindsTheFolderThatTheArchiveUnpacksTo) {
  const TempFolder temp;
  write_cifar(temp.path() / "cifar-10-batches-bin", 1);
  EXPECT_EQ(read_cifar10(temp.path(), Split::train).size(), 5);
}

TEST(Cifar10, NamesAMissingFolderAndAMissingFile) {
  const TempFolder temp;
  expect_error<UsageError>([&] { read_cifar10(temp.path() / "none", Split::train); },
                           {"no folder", "none'", "data_batch_1.bin"});
  write_cifar(temp.path(), 1);
  std::filesystem::remove(temp.path() / "data_batch_4.bin");
  expect_error<UsageError>([&] { read_cifar10(temp.path(), Split::train); },
                           {"no file", "data_batch_4.bin", "3073 bytes"});
  EXPECT_EQ(read_cifar10(temp.path(), Split::test).size(), 1);
}

TEST(Cifar10, NamesTheRecordInWhichATruncatedFileEnds) {
  const TempFolder temp;
  write_cifar(temp.path(), 3);
  for (const std::size_t size : {std::size_t{1}, std::size_t{3072}, std::size_t{3074}, std::size_t{9218}}) {
    auto bytes = cifar_records(3);
    bytes.resize(size);
    write_bytes(temp.path() / "data_batch_2.bin", bytes);
    const std::size_t record = size / 3073;
    expect_error<UsageError>([&] { read_cifar10(temp.path(), Split::train); },
                             {"data_batch_2.bin", std::to_string(size) + " bytes",
                              "record " + std::to_string(record), "offset " + std::to_string(record * 3073)});
  }
}

TEST(Cifar10, RefusesAnEmptyFile) {
  const TempFolder temp;
  write_cifar(temp.path(), 1);
  write_bytes(temp.path() / "test_batch.bin", {});
  expect_error<UsageError>([&] { read_cifar10(temp.path(), Split::test); }, {"test_batch.bin", "empty"});
}

TEST(Cifar10, NamesALabelOutOfRange) {
  const TempFolder temp;
  write_cifar(temp.path(), 3);
  auto bytes = cifar_records(3);
  bytes[2 * 3073] = 10;
  write_bytes(temp.path() / "data_batch_5.bin", bytes);
  expect_error<UsageError>([&] { read_cifar10(temp.path(), Split::train); },
                           {"data_batch_5.bin", "label 10", "record 2", "offset 6146", "0 to 9"});
}

TEST(Cifar10, RefusesAFileTooLargeToBeMeantWithoutReadingIt) {
  const TempFolder temp;
  write_cifar(temp.path(), 1);
  std::filesystem::resize_file(temp.path() / "test_batch.bin", std::uintmax_t{3073} << 30);  // 3 TiB of hole
  expect_error<UsageError>([&] { read_cifar10(temp.path(), Split::test); },
                           {"test_batch.bin", "3299608625152 bytes", "100000 records"});
}

TEST(Cifar10, RefusesAPipeAndAFolderInPlaceOfAFile) {
  const TempFolder temp;
  write_cifar(temp.path(), 1);
  std::filesystem::remove(temp.path() / "test_batch.bin");
  ASSERT_EQ(::mkfifo((temp.path() / "test_batch.bin").c_str(), 0600), 0);
  expect_error<UsageError>([&] { read_cifar10(temp.path(), Split::test); },
                           {"test_batch.bin", "no plain file"});
  std::filesystem::remove(temp.path() / "data_batch_1.bin");
  std::filesystem::create_directory(temp.path() / "data_batch_1.bin");
  expect_error<UsageError>([&] { read_cifar10(temp.path(), Split::train); },
                           {"data_batch_1.bin", "no plain file"});
}

TEST(Cifar10, KeepsTheMessageOnOneLine) {
  const TempFolder temp;
  expect_error<UsageError>([&] { read_cifar10(temp.path() / "two\nlines", Split::test); }, {"two?lines"});
}

TEST(Mnist, ReadsImagesAndLabels) {
  const TempFolder temp;
  write_mnist(temp.path(), 12);
  for (const Split split : {Split::train, Split::test}) {
    const Images images = read_mnist(temp.path(), split);
    ASSERT_EQ(images.size(), 12);
    EXPECT_EQ(images.shape, (ImageShape{1, 28, 28}));
    ASSERT_EQ(images.pixels.size(), 12u * 784);
    for (std::size_t i = 0; i < images.pixels.size(); ++i) ASSERT_EQ(images.pixels[i], i % 251);
    EXPECT_EQ(images.labels[11], 1);
  }
}

TEST(Mnist, FindsOtherUsualPlaces) {
  const TempFolder temp;
  write_mnist(temp.path() / "MNIST" / "raw", 2);
  std::filesystem::rename(temp.path() / "MNIST/raw/train-images-idx3-ubyte",
                          temp.path() / "MNIST/raw/train-images.idx3-ubyte");
  EXPECT_EQ(read_mnist(temp.path(), Split::train).size(), 2);
}

TEST(Mnist, SaysThatAPackedFileIsPacked) {
  const TempFolder temp;
  write_mnist(temp.path(), 2);
  std::filesystem::rename(temp.path() / "t10k-labels-idx1-ubyte", temp.path() / "t10k-labels-idx1-ubyte.gz");
  expect_error<UsageError>([&] { read_mnist(temp.path(), Split::test); },
                           {"idx1-ubyte.gz", "packed", "gunzip"});
}

TEST(Mnist, NamesWhatIsWrong) {
  const TempFolder temp;
  const auto images = temp.path() / "train-images-idx3-ubyte";
  const auto labels = temp.path() / "train-labels-idx1-ubyte";
  const auto refused = [&](const std::vector<std::string>& parts) {
    expect_error<UsageError>([&] { read_mnist(temp.path(), Split::train); }, parts);
    write_mnist(temp.path(), 4);
    EXPECT_EQ(read_mnist(temp.path(), Split::train).size(), 4);
  };
  refused({"no file", "train-images-idx3-ubyte", "idx file"});
  write_bytes(images, bytes_of("short"));
  refused({"train-images", "5 bytes", "header of 16"});
  write_bytes(images, idx_file(0x801, {4, 28, 28}, 4 * 784, 10));
  refused({"train-images", "magic number 2049", "offset 0", "2051 expected"});
  write_bytes(images, idx_file(0x803, {4, 28, 27}, 4 * 784, 10));
  refused({"train-images", "dimension 2 is 27", "offset 12"});
  write_bytes(images, idx_file(0x803, {4, 28, 28}, 4 * 784 - 1, 10));
  refused({"train-images", "announces 4", "3152 bytes", "has 3151"});
  write_bytes(images, idx_file(0x803, {4, 28, 28}, 4 * 784 + 1, 10));
  refused({"train-images", "announces 4", "has 3153"});
  write_bytes(images, idx_file(0x803, {0xffffffff, 28, 28}, 784, 10));
  refused({"train-images", "announces 4294967295"});
  write_bytes(images, idx_file(0x803, {0, 28, 28}, 0, 10));
  refused({"train-images", "announces 0"});
  write_bytes(labels, idx_file(0x801, {5}, 5, 10));
  refused({"train-labels", "5 labels", "4 images", "train-images"});
  write_bytes(labels, idx_file(0x801, {4}, 3, 10));
  refused({"train-labels", "announces 4", "has 11"});
  auto bytes = idx_file(0x801, {4}, 4, 10);
  bytes.back() = 200;
  write_bytes(labels, bytes);
  refused({"train-labels", "label 200", "image 3", "offset 11", "0 to 9"});
}

TEST(Text, ReadsAFileOrTheTxtFilesOfAFolderByName) {
  const TempFolder temp;
  write_bytes(temp.path() / "b.txt", bytes_of("second"));
  write_bytes(temp.path() / "a.txt", bytes_of("first "));
  write_bytes(temp.path() / "c.bin", bytes_of("not text"));
  EXPECT_EQ(read_text(temp.path()), bytes_of("first second"));
  EXPECT_EQ(read_text(temp.path() / "c.bin"), bytes_of("not text"));
}

TEST(Text, NamesWhatIsMissing) {
  const TempFolder temp;
  expect_error<UsageError>([&] { read_text(temp.path()); }, {"no .txt file", "a file of text"});
  expect_error<UsageError>([&] { read_text(temp.path() / "gone.txt"); }, {"no file", "gone.txt"});
}

}  // namespace
}  // namespace lockstep
