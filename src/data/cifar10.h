// The layout of CIFAR-10's binary files, for the reader and for those who write in the same format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/data/files.h"

namespace lockstep {

constexpr std::int64_t kCifarRecordBytes = 1 + 3 * 32 * 32;
constexpr std::int64_t kCifarMostRecords = 100'000;  // in a file; the real ones have 10000
constexpr int kCifarTrainFiles = 5;
constexpr auto kCifarTestFile = "test_batch.bin";
std::string cifar_train_file(int number);  // 1 to kCifarTrainFiles

// Appends the records of one file. Throws UsageError; `file` is what the message calls the bytes.
void append_cifar10(Images& images, std::span<const std::uint8_t> bytes, const std::filesystem::path& file);

}  // namespace lockstep
