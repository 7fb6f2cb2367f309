// Tensors of a checkpoint, wherever their elements lie: in one file, or in parts that several workers have
// written. What the manifest says of them.
//
// A *set* is what one safetensors file would hold: "model.safetensors", "optimizer.safetensors". Each of its
// tensors consists of runs of elements, in the order of a contiguous tensor; a run lies in one piece in one
// file. A run's bytes are hashed in pieces of kPieceBytes, so that who needs some of them reads, and checks,
// little more than those.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_header.h"

namespace lockstep {

inline constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

struct StoredRun {
  std::uint64_t begin = 0;  // elements
  std::uint64_t end = 0;
  std::string file = {};                 // of the checkpoint
  std::uint64_t at = 0;                  // of its first byte in that file
  std::vector<std::string> sha256 = {};  // of each piece

  bool operator==(const StoredRun&) const = default;
};

struct StoredTensor {
  FileDType dtype = FileDType::f32;
  std::vector<std::int64_t> shape = {};
  std::vector<StoredRun> runs = {};

  std::uint64_t elements(std::string_view name) const {
    return tensor_bytes(dtype, shape, name) / size_of(dtype);
  }
  std::uint64_t bytes_of(const StoredRun& run) const { return (run.end - run.begin) * size_of(dtype); }
  bool operator==(const StoredTensor&) const = default;
};

struct TensorSet {
  std::map<std::string, std::string> metadata = {};
  std::map<std::string, StoredTensor> tensors = {};

  bool operator==(const TensorSet&) const = default;
};
using TensorSets = std::map<std::string, TensorSet>;

std::uint64_t pieces_of(std::uint64_t bytes);  // how many hashes they have

nlohmann::json to_json(const TensorSets& sets);
// Throws UsageError, and nlohmann's exceptions, for what to_json never gives.
TensorSets parse_sets(const nlohmann::json& json);

// Adds the runs of `more`. Throws UsageError where the two tell a tensor's form differently.
void merge_sets(TensorSets& sets, const TensorSets& more);

// Puts runs in order. Throws UsageError that names a tensor whose runs leave out elements or come twice.
void check_cover(TensorSets& sets);

// A number that the file has, and no other kind of it: the library would convert any, also one far outside
// of the type's range, for which C++ has no answer. Throws UsageError.
template <class Integer>
Integer whole_number(const nlohmann::json& json);

}  // namespace lockstep
