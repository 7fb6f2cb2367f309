#include "lockstep/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/output_file.h"
#include "checkpoint/file.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/torch_types.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::pair<FileDType, torch::ScalarType> kDTypes[] = {
    {FileDType::boolean, torch::kBool}, {FileDType::u8, torch::kUInt8},
    {FileDType::i8, torch::kInt8},      {FileDType::i16, torch::kInt16},
    {FileDType::i32, torch::kInt32},    {FileDType::i64, torch::kInt64},
    {FileDType::f16, torch::kFloat16},  {FileDType::bf16, torch::kBFloat16},
    {FileDType::f32, torch::kFloat32},  {FileDType::f64, torch::kFloat64}};

}  // namespace

torch::ScalarType to_torch(FileDType dtype) {
  return std::ranges::find(kDTypes, dtype, &std::pair<FileDType, torch::ScalarType>::first)->second;
}

FileDType to_file(const torch::Tensor& tensor, const std::string& name) {
  if (!tensor.defined()) throw UsageError("tensor " + show_name(name) + " is undefined");
  if (tensor.layout() != torch::kStrided) throw UsageError("tensor " + show_name(name) + " is not dense");
  for (const auto& [file, torch] : kDTypes) {
    if (torch == tensor.scalar_type()) return file;
  }
  throw UsageError("tensor " + show_name(name) + " has dtype " + torch::toString(tensor.scalar_type()) +
                   ", which safetensors files don't hold");
}

void check_bools(const torch::Tensor& tensor, const std::string& name) {
  if (tensor.scalar_type() == torch::kBool &&
      std::ranges::any_of(tensor_bytes(tensor), [](std::byte b) { return b > std::byte{1}; }))
    throw UsageError("tensor " + show_name(name) + " is BOOL and holds a byte that is neither 0 nor 1");
}

namespace {

SafetensorsHeader make_header(const TensorMap& tensors, const Metadata& metadata) {
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  for (const auto& [name, tensor] : tensors) {
    header.tensors.push_back({.name = name, .dtype = to_file(tensor, name), .shape = tensor.sizes().vec()});
  }
  lay_out(header.tensors);
  return header;
}

torch::Tensor read_tensor(InputFile& input, const TensorEntry& entry) {
  auto tensor = torch::empty(entry.shape, to_torch(entry.dtype));
  input.read_all(tensor_bytes(tensor));
  check_bools(tensor, entry.name);
  return tensor;
}

}  // namespace

void save_safetensors(const std::filesystem::path& file, const TensorMap& tensors,
                      const Metadata& metadata) try {
  const SafetensorsHeader header = make_header(tensors, metadata);
  const std::string head = compose_header(header);
  OutputFile output(file);
  output.write(std::as_bytes(std::span(head)));
  for (const TensorEntry& entry : header.tensors) {
    const auto tensor = tensors.at(entry.name).detach().resolve_conj().resolve_neg().cpu().contiguous();
    output.write(tensor_bytes(tensor));
  }
  output.finish();
} catch (const UsageError& wrong) {
  throw UsageError("cannot save " + file.string() + ": " + wrong.what());
}

SafetensorsFile load_safetensors(const std::filesystem::path& file) try {
  InputFile input(file);
  SafetensorsHeader header = read_header(input);
  SafetensorsFile loaded{.tensors = {}, .metadata = std::move(header.metadata)};
  for (const TensorEntry& entry : header.tensors) {
    loaded.tensors.emplace(entry.name, read_tensor(input, entry));
  }
  return loaded;
} catch (const UsageError& wrong) {
  throw UsageError("cannot load " + file.string() + ": " + wrong.what());
}

}  // namespace lockstep
