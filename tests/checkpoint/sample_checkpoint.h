// Checkpoints as a training run leaves them, made by hand and small.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors_header.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep::test {

struct SampleTensor {
  std::string name;
  FileDType dtype;
  std::vector<std::int64_t> shape;
  char fill;  // every byte of it
};

inline std::string tensor_file(const std::vector<SampleTensor>& samples,
                               const std::map<std::string, std::string>& metadata = {}) {
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  std::string data;
  for (const SampleTensor& sample : samples) {
    const auto bytes = tensor_bytes(sample.dtype, sample.shape, sample.name);
    header.tensors.push_back({.name = sample.name,
                              .dtype = sample.dtype,
                              .shape = sample.shape,
                              .begin = data.size(),
                              .end = data.size() + bytes});
    data.append(bytes, sample.fill);
  }
  return compose_header(header) + data;
}

using SampleFiles = std::map<std::string, std::string>;  // by name

inline std::filesystem::path write_sample(const std::filesystem::path& folder, std::int64_t step,
                                          const SampleFiles& files) {
  return CheckpointStore(folder, 0).write(step, [&](const std::filesystem::path& staging) {
    for (const auto& [name, text] : files) write_file(staging / name, text);
  });
}

// Two parameters of bf16 with their masters, a buffer of f32, one kind of optimizer state.
inline SampleFiles bf16_run() {
  return {{"model.safetensors", tensor_file({{"a.weight", FileDType::bf16, {4, 3}, 'w'},
                                             {"b.bias", FileDType::bf16, {4}, 'b'},
                                             {"norm.mean", FileDType::f32, {5}, 'n'}},
                                            {{"format", "pt"}})},
          {"optimizer.safetensors", tensor_file({{"exp_avg/a.weight", FileDType::f32, {4, 3}, 'e'},
                                                 {"exp_avg/b.bias", FileDType::f32, {4}, 'f'},
                                                 {"master/a.weight", FileDType::f32, {4, 3}, 'W'},
                                                 {"master/b.bias", FileDType::f32, {4}, 'B'},
                                                 {"step/a.weight", FileDType::i64, {}, '\1'},
                                                 {"step/b.bias", FileDType::i64, {}, '\1'}})},
          {"state.json", "{}\n"}};
}

inline std::string bytes_of(const std::filesystem::path& file) { return read_text(file, 1 << 24); }

inline void put(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// Flips one bit; `at` counts from the end when it is negative.
inline void flip_bit(const std::filesystem::path& file, std::ptrdiff_t at) {
  std::string bytes = bytes_of(file);
  char& byte =
      bytes.at(static_cast<std::size_t>(at < 0 ? static_cast<std::ptrdiff_t>(bytes.size()) + at : at));
  byte = static_cast<char>(byte ^ 4);
  put(file, bytes);
}

}  // namespace lockstep::test
