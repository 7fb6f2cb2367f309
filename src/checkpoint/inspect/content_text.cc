// What a checkpoint holds, as JSON and as tables.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "checkpoint/inspect/content.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "report/printable.h"
#include "report/table.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json total_json(const PartTotal& total) {
  return {{"tensors", total.tensors}, {"elements", total.elements}, {"bytes", total.bytes}};
}

// "12 345"
std::string grouped(std::uint64_t count) {
  return count < 1000 ? std::to_string(count) : format_number(static_cast<double>(count));
}

// Names are what somebody wrote into a file.
std::string shown(const std::string& name) { return one_line(printable(name)); }

std::string file_table(const CheckpointContent& content, bool colours) {
  Table table({{"file", Align::left}, {"tensors"}, {"size"}});
  for (const ContentFile& file : content.files)
    table.add_row({{shown(file.name)},
                   {file.runs > 0              ? grouped(file.runs) + (file.runs == 1 ? " run" : " runs")
                    : holds_tensors(file.name) ? grouped(file.tensors.size())
                                               : "-"},
                   {format_bytes(file.bytes)}});
  return table.render(colours);
}

std::string tensor_table(const CheckpointContent& content, bool colours) {
  Table table({{"tensor", Align::left},
               {"dtype", Align::left},
               {"shape", Align::left},
               {"size"},
               {"part", Align::left}});
  content.for_each([&](const std::string&, std::size_t, const ContentTensor& tensor) {
    table.add_row({{shown(tensor.entry.name)},
                   {to_string(tensor.entry.dtype)},
                   {fmt::format("[{}]", fmt::join(tensor.entry.shape, ", "))},
                   {format_bytes(tensor.bytes())},
                   {to_string(tensor.part)}});
  });
  return table.render(colours);
}

std::string total_table(const CheckpointContent& content, bool colours) {
  Table table({{"part", Align::left}, {"tensors"}, {"elements"}, {"size"}});
  PartTotal all;
  const auto add = [&](const char* name, const PartTotal& total) {
    table.add_row({{name}, {grouped(total.tensors)}, {grouped(total.elements)}, {format_bytes(total.bytes)}});
  };
  for (const auto& [part, total] : content.totals()) {
    add(to_string(part), total);
    all.tensors += total.tensors;
    all.elements += total.elements;
    all.bytes += total.bytes;
  }
  add("all", all);
  return table.render(colours);
}

}  // namespace

Json to_json(const CheckpointContent& content) {
  Json files = Json::array(), tensors = Json::array(), totals = Json::object();
  for (const ContentFile& file : content.files) files.push_back({{"file", file.name}, {"bytes", file.bytes}});
  content.for_each([&](const std::string& file, std::size_t parts, const ContentTensor& tensor) {
    tensors.push_back({{"file", file},
                       {"name", tensor.entry.name},
                       {"part", to_string(tensor.part)},
                       {"dtype", to_string(tensor.entry.dtype)},
                       {"shape", tensor.entry.shape},
                       {"bytes", tensor.bytes()}});
    if (parts > 1) tensors.back()["files"] = parts;
  });
  for (const auto& [part, total] : content.totals()) totals[to_string(part)] = total_json(total);
  return {{"files", files}, {"tensors", tensors}, {"totals", totals}};
}

std::string describe(const CheckpointContent& content, bool colours) {
  return fmt::format("{}\n\n{}\n{}\n{}", shown(content.folder.string()), file_table(content, colours),
                     tensor_table(content, colours), total_table(content, colours));
}

}  // namespace lockstep
