#include "recipe/device_flag.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= 4 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

void check_device(const std::string& device) {
  if (device == "cpu") return;
  const bool gpu = device == "cuda" || (device.starts_with("cuda:") && is_number(device.substr(5)));
#ifdef LOCKSTEP_HAS_TORCH_CUDA
  if (gpu) return;
  throw UsageError(fmt::format("--device '{}' is not understood; accepted: cpu, cuda, cuda:N", device));
#else
  if (gpu)
    throw UsageError(fmt::format(
        "--device {}: this build has no CUDA (accepted: cpu); a libtorch with CUDA, and its toolkit, give it",
        device));
  throw UsageError(fmt::format("--device '{}' is not understood; accepted: cpu", device));
#endif
}

}  // namespace lockstep
