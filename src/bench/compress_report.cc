// Measured codecs for scripts and for people.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "bench/compress.h"
#include "lockstep/base/bytes.h"
#include "report/table.h"

namespace lockstep {

void to_json(nlohmann::ordered_json& json, const CompressRow& row) {
  json = {{"method", row.method},
          {"bytes", row.bytes},
          {"payload_bytes", row.payload_bytes},
          {"ratio", row.ratio()},
          {"encode_us", row.encode_us},
          {"decode_us", row.decode_us},
          {"decodes", row.decodes},
          {"encode_gbs", row.encode_gbs()},
          {"decode_gbs", row.decode_gbs()},
          {"encode_of_copy", row.encode_of_copy},
          {"decode_of_copy", row.decode_of_copy},
          {"relative_error", row.relative_error},
          {"pays_below_gbits", row.pays_below_bits_s * 1e-9}};
}

std::string compress_table(const std::vector<CompressRow>& rows, bool colours) {
  Table table({{"size"},
               {"method", Align::left},
               {"sent"},
               {"× less"},
               {"error"},
               {"encode GB/s"},
               {"of copy"},
               {"decode GB/s"},
               {"of copy"},
               {"pays below"}});
  std::optional<std::uint64_t> size;
  for (const CompressRow& row : rows) {
    if (size && *size != row.bytes) table.add_gap();
    const std::string shown = size == row.bytes ? "" : format_bytes(row.bytes);
    size = row.bytes;
    table.add_row(
        {{shown},
         {row.method},
         {format_bytes(row.payload_bytes)},
         {format_number(row.ratio())},
         {format_number(row.relative_error)},
         {format_number(row.encode_gbs())},
         {fmt::format("{:.2f}", row.encode_of_copy)},
         {format_number(row.decode_gbs())},
         {fmt::format("{:.2f}", row.decode_of_copy)},
         {row.pays_below_bits_s > 0 ? format_number(row.pays_below_bits_s * 1e-9) + " Gbit/s" : "never"}});
  }
  return table.render(colours);
}

}  // namespace lockstep
