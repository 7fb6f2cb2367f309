// What the bits of a run depend on besides its model and its data.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <string_view>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/state.h"

namespace lockstep {
namespace {

// "AVX2": for which instructions libtorch has chosen its kernels; empty where it does not say so.
std::string instructions() {
  constexpr std::string_view kMark = "CPU capability usage: ";
  const std::string config = at::show_config();
  const std::size_t at = config.find(kMark);
  if (at == std::string::npos) return "";
  return config.substr(at + kMark.size(), config.find('\n', at) - at - kMark.size());
}

// "OpenBLAS 0.3.21 for Haswell"; empty where libtorch has another library, or its own.
std::string blas() {
  const auto text = [](const char* name) -> std::string_view {
    auto* const function = reinterpret_cast<const char* (*)()>(::dlsym(RTLD_DEFAULT, name));
    return function == nullptr ? "" : function();
  };
  const std::string_view config = text("openblas_get_config");  // "OpenBLAS 0.3.21 …"
  if (config.empty()) return "";
  return fmt::format("{} for {}", config.substr(0, config.find(' ', config.find(' ') + 1)),
                     text("openblas_get_corename"));
}

}  // namespace

Metadata arithmetic_facts() {
  Metadata facts{{"libtorch", TORCH_VERSION}, {"threads", std::to_string(at::get_num_threads())}};
  if (std::string set = instructions(); !set.empty()) facts["instructions"] = std::move(set);
  if (std::string library = blas(); !library.empty()) facts["blas"] = std::move(library);
  return facts;
}

std::string other_arithmetic(const Metadata& metadata, const Metadata& here) {
  std::string text;
  for (const auto& [name, now] : here) {
    const auto then = metadata.find(name);
    if (then == metadata.end() || then->second == now) continue;
    text += fmt::format("{}{} = {}, and here it is {}", text.empty() ? "" : "; ", name, then->second, now);
  }
  return text;
}

bool same_arithmetic(const Metadata& metadata, const std::string& source) {
  const std::string other = other_arithmetic(metadata);
  if (other.empty()) return true;
  log().warn("{} was saved by a run with {}: the bits may differ from here on", source, other);
  return false;
}

}  // namespace lockstep
