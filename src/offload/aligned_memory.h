// Memory that disks can be read into past the page cache.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "offload/scratch_file.h"

namespace lockstep {

class AlignedMemory {
 public:
  AlignedMemory() = default;
  // Zeros; `bytes` is a multiple of ScratchFile::kAlign. Throws std::bad_alloc.
  explicit AlignedMemory(std::size_t bytes)
      : memory_(
            static_cast<std::byte*>(bytes == 0 ? nullptr : std::aligned_alloc(ScratchFile::kAlign, bytes))),
        bytes_(bytes) {
    if (bytes == 0) return;
    if (memory_ == nullptr) throw std::bad_alloc();
    std::memset(memory_.get(), 0, bytes);
  }

  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> first(std::size_t bytes) const { return {memory_.get(), bytes}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep
