#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "checkpoint/header_reader.h"
#include "lockstep/base/error.h"

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian, and so must be we");

std::size_t size_of(FileDType dtype) {
  switch (dtype) {
    case FileDType::boolean:
    case FileDType::u8:
    case FileDType::i8: return 1;
    case FileDType::i16:
    case FileDType::f16:
    case FileDType::bf16: return 2;
    case FileDType::i32:
    case FileDType::f32: return 4;
    case FileDType::i64:
    case FileDType::f64: return 8;
  }
  return 0;
}

const char* to_string(FileDType dtype) {
  switch (dtype) {
    case FileDType::boolean: return "BOOL";
    case FileDType::u8: return "U8";
    case FileDType::i8: return "I8";
    case FileDType::i16: return "I16";
    case FileDType::i32: return "I32";
    case FileDType::i64: return "I64";
    case FileDType::f16: return "F16";
    case FileDType::bf16: return "BF16";
    case FileDType::f32: return "F32";
    case FileDType::f64: return "F64";
  }
  return "?";
}

std::string show_name(std::string_view text) {
  constexpr std::size_t kMost = 80;
  const bool cut = text.size() > kMost;
  return nlohmann::json(text.substr(0, kMost)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) +
         (cut ? "…" : "");
}

std::uint64_t tensor_bytes(FileDType dtype, std::span<const std::int64_t> shape, std::string_view name) {
  // Sizes of 0 count as 1 while the bound is checked: strides are products too, and those must not overflow.
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::uint64_t bound = size_of(dtype);
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) throw UsageError("tensor " + show_name(name) + " has a negative size");
    if (size == 0) {
      empty = true;
    } else if (bound > kMost / static_cast<std::uint64_t>(size)) {
      throw UsageError("tensor " + show_name(name) + " has a shape whose bytes are beyond 63 bits");
    } else {
      bound *= static_cast<std::uint64_t>(size);
    }
  }
  return empty ? 0 : bound;
}

std::uint64_t parse_header_length(std::span<const std::byte, kHeaderLengthBytes> bytes,
                                  std::uint64_t file_bytes) {
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeaderBytes) {
    throw UsageError("it is no safetensors file: its header would have " + std::to_string(length) +
                     " bytes; at most " + std::to_string(kMaxHeaderBytes) + " are accepted");
  }
  if (file_bytes < kHeaderLengthBytes || length > file_bytes - kHeaderLengthBytes) {
    throw UsageError("it is cut off: its header has " + std::to_string(length) + " bytes, the whole file " +
                     std::to_string(file_bytes));
  }
  return length;
}

SafetensorsHeader parse_header(std::string_view json, std::uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') throw UsageError("it is no safetensors file: no JSON header");
  SafetensorsHeader header = read_header_json(json);
  std::ranges::sort(header.tensors, {},
                    [](const TensorEntry& entry) { return std::tie(entry.begin, entry.end, entry.name); });
  std::uint64_t at = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != at || entry.end < entry.begin) {
      throw UsageError("its header is broken: tensor " + show_name(entry.name) + " lies at bytes " +
                       std::to_string(entry.begin) + " to " + std::to_string(entry.end) +
                       " of the data, where " + std::to_string(at) + " comes next");
    }
    const std::uint64_t bytes = tensor_bytes(entry.dtype, entry.shape, entry.name);
    if (entry.end - entry.begin != bytes) {
      throw UsageError("its header is broken: tensor " + show_name(entry.name) + " has " +
                       std::to_string(entry.end - entry.begin) + " bytes; its dtype and shape need " +
                       std::to_string(bytes));
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    throw UsageError((at > data_bytes ? "it is cut off: " : "it has bytes after its last tensor: ") +
                     std::string("its tensors need ") + std::to_string(at) + " bytes of data, it has " +
                     std::to_string(data_bytes));
  }
  return header;
}

void lay_out(std::vector<TensorEntry>& tensors) {
  std::ranges::sort(tensors, [](const TensorEntry& a, const TensorEntry& b) {
    return size_of(a.dtype) != size_of(b.dtype) ? size_of(a.dtype) > size_of(b.dtype) : a.name < b.name;
  });
  std::uint64_t at = 0;
  for (TensorEntry& entry : tensors) {
    entry.begin = at;
    entry.end = at += tensor_bytes(entry.dtype, entry.shape, entry.name);
  }
}

std::string compose_header(const SafetensorsHeader& header) {
  std::string text = "{";
  try {
    if (!header.metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(header.metadata).dump() + ",";
    for (const TensorEntry& entry : header.tensors) {
      if (entry.name == "__metadata__") throw UsageError("no tensor may be called __metadata__");
      const nlohmann::json fields = {{"dtype", to_string(entry.dtype)},
                                     {"shape", entry.shape},
                                     {"data_offsets", {entry.begin, entry.end}}};
      text += nlohmann::json(entry.name).dump() + ":" + fields.dump() + ",";
    }
  } catch (const nlohmann::json::exception&) {
    throw UsageError("a tensor's name or the metadata is no UTF-8");
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  if (length > kMaxHeaderBytes) {
    throw UsageError("the header of " + std::to_string(header.tensors.size()) + " tensors has " +
                     std::to_string(length) + " bytes; at most " + std::to_string(kMaxHeaderBytes) +
                     " are accepted");
  }
  std::string head(kHeaderLengthBytes, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  return head + text;
}

}  // namespace lockstep
