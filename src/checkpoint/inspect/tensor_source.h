// A safetensors file whose tensors are read when they are needed, piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "checkpoint/file.h"
#include "checkpoint/safetensors_header.h"

namespace lockstep {

class TensorSource {
 public:
  explicit TensorSource(const std::filesystem::path& file);  // throws SystemError
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  const SafetensorsHeader& header() const { return header_; }
  const TensorEntry* find(const std::string& name) const;  // null: there is none
  // Hands the bytes of a tensor of this file to `take`, in order. Throws SystemError, and what `take` throws.
  void read(const TensorEntry& entry, const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  InputFile input_;
  SafetensorsHeader header_;
  std::uint64_t data_begin_ = 0;
  std::map<std::string, const TensorEntry*> by_name_;
};

}  // namespace lockstep
