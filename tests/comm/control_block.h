// A group's control block in memory of its own.
#pragma once

#include <sys/mman.h>

#include <new>

#include "comm/shm/layout.h"

namespace lockstep::testing {

class ControlBlock {
 public:
  explicit ControlBlock(int ranks)
      : bytes_(shm::Control::bytes(ranks)),
        data_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                     0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~ControlBlock() { ::munmap(data_, bytes_); }
  ControlBlock(const ControlBlock&) = delete;
  ControlBlock& operator=(const ControlBlock&) = delete;
  shm::Control& control() { return *static_cast<shm::Control*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace lockstep::testing
