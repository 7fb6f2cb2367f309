// Codecs of gradients measured on one core: how fast, how small, how far off, and on which links they pay.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep {

struct CompressPlan {
  std::vector<std::uint64_t> sizes;  // bytes of an f32 gradient; ascending, at least 4
  std::vector<std::string> methods;  // as make_coder() takes them (coder.h)
  double min_time_s = 0.3;           // for encoding and for decoding, each method and size
};

// One method at one size. Times are medians.
struct CompressRow {
  std::string method;
  std::uint64_t bytes = 0;  // of the gradient
  std::uint64_t payload_bytes = 0;
  double encode_us = 0;
  double decode_us = 0;       // decode_add
  int decodes = 2;            // a step, of a worker of two: both payloads, or what was added up on the way
  double encode_of_copy = 0;  // bytes read and written a second, as a share of what memcpy moves
  double decode_of_copy = 0;
  double relative_error = 0;  // |sent - gradient| / |gradient|, once, without error feedback
  // Two workers that send each other their payloads, or add them up on the way, take less time than a dense
  // all-reduce on links slower than this, in bits a second each way; 0: on none. Nothing overlaps, and
  // latency counts for nothing.
  double pays_below_bits_s = 0;

  double ratio() const { return static_cast<double>(bytes) / static_cast<double>(payload_bytes); }
  double encode_gbs() const { return static_cast<double>(bytes) / encode_us * 1e-3; }  // of gradient
  double decode_gbs() const { return static_cast<double>(bytes) / decode_us * 1e-3; }
};

void to_json(nlohmann::ordered_json& json, const CompressRow& row);

// A gradient of normal numbers, the same for every run. Gives each row as it is ready, by size. Throws
// UsageError where a method is unknown.
void measure_codecs(const CompressPlan& plan, const std::function<void(const CompressRow&)>& give);

std::string compress_table(const std::vector<CompressRow>& rows, bool colours);

}  // namespace lockstep
