#include "lockstep/checkpoint/state.h"

#include <fmt/format.h>

#include <cstring>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/hash.h"

namespace lockstep {
namespace {

std::string describe(const torch::Tensor& tensor) {
  return fmt::format("{}[{}]", torch::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void add_number(Sha256& hash, std::int64_t number) { hash.update(std::as_bytes(std::span(&number, 1))); }

// The length goes first, so that no two different lists of texts and bytes read the same.
void add_bytes(Sha256& hash, std::span<const std::byte> bytes) {
  add_number(hash, static_cast<std::int64_t>(bytes.size()));
  hash.update(bytes);
}

}  // namespace

TensorMap model_state(const torch::nn::Module& module) {
  TensorMap state;
  for (const auto& item : module.named_parameters()) state.emplace(item.key(), item.value().detach());
  for (const auto& item : module.named_buffers()) state.emplace(item.key(), item.value().detach());
  return state;
}

void check_model_state(const torch::nn::Module& module, const TensorMap& state, const std::string& source) {
  const TensorMap own = model_state(module);
  std::string first;
  int differences = 0;
  const auto differ = [&](std::string what) {
    if (differences++ == 0) first = std::move(what);
  };
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    if (found == state.end()) {
      differ(fmt::format("has no {}, which the model has as {}", name, describe(tensor)));
    } else if (found->second.sizes() != tensor.sizes() ||
               found->second.scalar_type() != tensor.scalar_type()) {
      differ(fmt::format("has {} as {}, the model as {}", name, describe(found->second), describe(tensor)));
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!own.contains(name))
      differ(fmt::format("has {} {}, which the model has not", name, describe(tensor)));
  }
  if (differences > 0) {
    throw UsageError(fmt::format(
        "{} does not fit the model: it {}{}; accepted: the model that it was written for, on data "
        "of the same shape and classes",
        source, first, differences == 1 ? "" : fmt::format(" ({} differences in all)", differences)));
  }
}

void load_model_state(torch::nn::Module& module, const TensorMap& state, const std::string& source) {
  check_model_state(module, state, source);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : model_state(module)) torch::Tensor(tensor).copy_(state.at(name));
}

std::string params_sha256(const torch::nn::Module& module,
                          const std::function<void(const torch::Tensor& tensor)>& before) {
  Sha256 hash;
  for (const auto& [name, tensor] : model_state(module)) {
    if (before) before(tensor);
    const auto values = tensor.cpu().contiguous();
    add_bytes(hash, std::as_bytes(std::span(name)));
    add_bytes(hash, std::as_bytes(std::span(std::string_view(torch::toString(values.scalar_type())))));
    add_number(hash, values.dim());
    for (const std::int64_t size : values.sizes()) add_number(hash, size);
    add_bytes(hash,
              {static_cast<const std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())});
  }
  return hash.hex();
}

}  // namespace lockstep
