// The header of a safetensors file: what its tensors are and where they lie. Works on bytes, without
// libtorch, so that it can be fuzzed by itself.
//
// A header that parse accepts describes the data completely: offsets begin at 0, leave no gap, do not
// overlap, end at the end of the data, and each range is exactly dtype × shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class FileDType : std::uint8_t { boolean, u8, i8, i16, i32, i64, f16, bf16, f32, f64 };

std::size_t size_of(FileDType dtype);    // bytes an element
const char* to_string(FileDType dtype);  // the format's names: "BOOL", "U8", … "F64"

struct TensorEntry {
  std::string name;
  FileDType dtype = FileDType::f32;
  std::vector<std::int64_t> shape{};
  std::uint64_t begin = 0;  // offsets into the data, which starts after the header
  std::uint64_t end = 0;

  bool operator==(const TensorEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;

  bool operator==(const SafetensorsHeader&) const = default;
};

inline constexpr std::size_t kHeaderLengthBytes = 8;
inline constexpr std::uint64_t kMaxHeaderBytes =
    100'000'000;                                   // what the reference implementation accepts too
inline constexpr std::size_t kMaxDimensions = 64;  // what libtorch's kernels can walk

// Reads the first eight bytes of a file of `file_bytes` bytes: how long the JSON header is. Throws
// UsageError, here and below, with what is wrong but without the file's name.
std::uint64_t parse_header_length(std::span<const std::byte, kHeaderLengthBytes> bytes,
                                  std::uint64_t file_bytes);

// Reads the JSON header of a file whose data has `data_bytes` bytes.
SafetensorsHeader parse_header(std::string_view json, std::uint64_t data_bytes);

// The beginning of a file: length and JSON, padded with spaces so that the data starts at a multiple of
// eight.
std::string compose_header(const SafetensorsHeader& header);

// Orders tensors and gives each its place: the widest element types first, then by name, so that every tensor
// is aligned in the file. Throws UsageError for a shape that the format can't hold.
void lay_out(std::vector<TensorEntry>& tensors);

// Bytes of dtype × shape; throws UsageError for a negative or overflowing shape. `name` is for the message.
std::uint64_t tensor_bytes(FileDType dtype, std::span<const std::int64_t> shape, std::string_view name);

// A name from a file as a message can show it: quoted, escaped, cut when long.
std::string show_name(std::string_view text);

}  // namespace lockstep
