// An owned shared mapping of a file descriptor.
#pragma once

#include <cstddef>
#include <utility>

namespace lockstep {

class Mapping {
 public:
  Mapping() = default;
  // Maps `bytes` of `fd` for reading and writing, shared, without reserving memory.
  // Throws SystemError.
  Mapping(int fd, std::size_t bytes);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep
