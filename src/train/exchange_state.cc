#include "train/exchange_state.h"

#include <fmt/format.h>
#include <torch/serialize.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/leader.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Tensors = c10::Dict<std::string, torch::Tensor>;

constexpr const char* kFile = "exchange.safetensors";
constexpr const char* kName = "exchange";  // under which the file has the exchange's name

std::string packed(const TensorMap& tensors) {
  Tensors dict;
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor);
  const std::vector<char> bytes = torch::pickle_save(dict);
  return {bytes.begin(), bytes.end()};
}

TensorMap unpacked(const std::string& bytes) {
  TensorMap tensors;
  for (const auto& entry : torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict())
    tensors.emplace(entry.key().toStringRef(), entry.value().toTensor());
  return tensors;
}

}  // namespace

void add_exchange(SavedState& state, const Exchange& exchange) {
  if (!exchange.state) return;
  TensorMap copies;  // it goes on remembering
  for (const auto& [name, tensor] : exchange.state()) copies.emplace(name, tensor.detach().clone());
  state.files.emplace_back(kFile, [copies = std::move(copies), name = exchange.name](const fs::path& file) {
    save_safetensors(file, copies, {{kName, name}});
  });
}

std::string load_exchange(const fs::path& checkpoint, const Exchange& exchange, const Group& world) {
  std::string name, bytes;
  run_on_leader(world, "reading what the exchange remembers", [&] {
    if (!fs::exists(checkpoint / kFile)) return;
    const SafetensorsFile file = load_safetensors(checkpoint / kFile);
    const auto named = file.metadata.find(kName);
    name = named == file.metadata.end() ? "" : named->second;
    if (name == exchange.name && exchange.load) bytes = packed(file.tensors);
  });
  world.broadcast(name, 0);
  world.broadcast(bytes, 0);
  if (!bytes.empty()) {
    exchange.load(unpacked(bytes));
    return {};
  }
  if (!name.empty())
    return fmt::format("{} has what the exchange {} remembers, which this run's, {}, does not take",
                       checkpoint.string(), name, exchange.name);
  if (exchange.load)
    return fmt::format("{} has nothing that the exchange {} remembers: it begins anew", checkpoint.string(),
                       exchange.name);
  return {};
}

}  // namespace lockstep
