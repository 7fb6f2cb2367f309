// A folder that goes away with the test, and files in it.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::testing {

using Bytes = std::vector<std::uint8_t>;

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder " + name);
    path_ = name;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& file, const Bytes& bytes) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

inline Bytes read_bytes(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// `count` records of CIFAR-10's format; the pixels of record r are all `first` + r.
inline Bytes cifar_records(int count, int first = 0) {
  Bytes bytes;
  for (int r = 0; r < count; ++r) {
    bytes.push_back(static_cast<std::uint8_t>((first + r) % 10));
    bytes.insert(bytes.end(), 3072, static_cast<std::uint8_t>(first + r));
  }
  return bytes;
}

inline void write_cifar(const std::filesystem::path& folder, int records_per_file) {
  for (int i = 1; i <= 5; ++i)
    write_bytes(folder / ("data_batch_" + std::to_string(i) + ".bin"),
                cifar_records(records_per_file, (i - 1) * records_per_file));
  write_bytes(folder / "test_batch.bin", cifar_records(records_per_file, 100));
}

// An idx file: the magic number, the dimensions, then `items` bytes counting up from 0 modulo `modulus`.
inline Bytes idx_file(std::uint32_t magic, const std::vector<std::uint32_t>& dims, std::size_t items,
                      int modulus) {
  Bytes bytes;
  const auto put = [&](std::uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(word >> shift));
  };
  put(magic);
  for (const std::uint32_t dim : dims) put(dim);
  for (std::size_t i = 0; i < items; ++i)
    bytes.push_back(static_cast<std::uint8_t>(i % static_cast<std::size_t>(modulus)));
  return bytes;
}

inline void write_mnist(const std::filesystem::path& folder, std::uint32_t count) {
  for (const std::string stem : {"train", "t10k"}) {
    write_bytes(folder / (stem + "-images-idx3-ubyte"), idx_file(0x803, {count, 28, 28}, count * 784, 251));
    write_bytes(folder / (stem + "-labels-idx1-ubyte"), idx_file(0x801, {count}, count, 10));
  }
}

}  // namespace lockstep::testing
