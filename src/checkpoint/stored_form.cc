#include "checkpoint/stored_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

FileDType parse_dtype(const std::string& text) {
  for (const FileDType dtype :
       {FileDType::boolean, FileDType::u8, FileDType::i8, FileDType::i16, FileDType::i32, FileDType::i64,
        FileDType::f16, FileDType::bf16, FileDType::f32, FileDType::f64})
    if (text == to_string(dtype)) return dtype;
  throw UsageError("has a tensor of the unknown type " + show_name(text));
}

Json to_json(const StoredTensor& tensor) {
  Json runs = Json::array();
  for (const StoredRun& run : tensor.runs)
    runs.push_back(Json::array({run.begin, run.end, run.file, run.at, run.sha256}));
  return {{"dtype", to_string(tensor.dtype)}, {"shape", tensor.shape}, {"runs", std::move(runs)}};
}

StoredRun parse_run(const Json& json) {
  StoredRun run{.begin = whole_number<std::uint64_t>(json.at(0)),
                .end = whole_number<std::uint64_t>(json.at(1)),
                .file = json.at(2).get<std::string>(),
                .at = whole_number<std::uint64_t>(json.at(3)),
                .sha256 = json.at(4).get<std::vector<std::string>>()};
  if (run.begin >= run.end) throw UsageError("has a run of no elements");
  return run;
}

StoredTensor parse_tensor(const std::string& name, const Json& json) {
  StoredTensor tensor{.dtype = parse_dtype(json.at("dtype").get<std::string>())};
  for (const Json& size : json.at("shape")) tensor.shape.push_back(whole_number<std::int64_t>(size));
  if (tensor.shape.size() > kMaxDimensions)
    throw UsageError("has tensor " + show_name(name) + " of more dimensions than there can be");
  const std::uint64_t elements = tensor.elements(name);  // its form is a possible one
  for (const Json& one : json.at("runs")) {
    tensor.runs.push_back(parse_run(one));
    const StoredRun& run = tensor.runs.back();
    if (run.end > elements || run.sha256.size() != pieces_of(tensor.bytes_of(run)))
      throw UsageError("has a run that does not fit tensor " + show_name(name));
  }
  return tensor;
}

}  // namespace

template <class Integer>
Integer whole_number(const Json& json) {
  if (!(std::is_unsigned_v<Integer> ? json.is_number_unsigned() : json.is_number_integer()))
    throw UsageError("has " + json.dump().substr(0, 40) + " where a whole number of 64 bits belongs");
  return json.get<Integer>();
}
template std::int64_t whole_number(const Json&);
template std::uint64_t whole_number(const Json&);

std::uint64_t pieces_of(std::uint64_t bytes) {
  return bytes / kPieceBytes + (bytes % kPieceBytes == 0 ? 0 : 1);
}

Json to_json(const TensorSets& sets) {
  Json json = Json::object();
  for (const auto& [name, set] : sets) {
    Json& one = json[name] = {{"metadata", Json(set.metadata)}, {"tensors", Json::object()}};
    for (const auto& [tensor, form] : set.tensors) one["tensors"][tensor] = to_json(form);
  }
  return json;
}

TensorSets parse_sets(const Json& json) {
  TensorSets sets;
  for (const auto& [name, one] : json.items()) {
    TensorSet& set = sets[name];
    set.metadata = one.at("metadata").get<std::map<std::string, std::string>>();
    for (const auto& [tensor, form] : one.at("tensors").items())
      set.tensors[tensor] = parse_tensor(tensor, form);
  }
  return sets;
}

void merge_sets(TensorSets& sets, const TensorSets& more) {
  for (const auto& [name, set] : more) {
    TensorSet& into = sets[name];
    into.metadata.insert(set.metadata.begin(), set.metadata.end());
    for (const auto& [tensor, form] : set.tensors) {
      const auto [at, added] = into.tensors.emplace(tensor, form);
      if (added) continue;
      if (at->second.dtype != form.dtype || at->second.shape != form.shape)
        throw UsageError("has tensor " + show_name(tensor) + " in two forms");
      at->second.runs.insert(at->second.runs.end(), form.runs.begin(), form.runs.end());
    }
  }
}

void check_cover(TensorSets& sets) {
  for (auto& [set, content] : sets)
    for (auto& [name, tensor] : content.tensors) {
      std::ranges::sort(tensor.runs, {}, &StoredRun::begin);
      std::uint64_t next = 0;
      for (const StoredRun& run : tensor.runs) {
        if (run.begin != next)
          throw UsageError(fmt::format("has tensor {} of {} with element {} {}", show_name(name), set,
                                       std::min(run.begin, next),
                                       run.begin > next ? "in none of its runs" : "in two of its runs"));
        next = run.end;
      }
      if (const std::uint64_t elements = tensor.elements(name); next != elements)
        throw UsageError(fmt::format("has tensor {} of {} with element {} in none of its runs",
                                     show_name(name), set, next));
    }
}

}  // namespace lockstep
