// The instruction sets that kernels can be run with here.
#pragma once

#include <hwy/targets.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "compress/codec/kernels.h"

namespace lockstep::testing {

inline void use_targets(std::int64_t targets) {  // 0: all of this machine
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// One bit for each target that this machine can run and the kernels were compiled for, the best first.
inline std::vector<std::int64_t> runnable_targets() {
  std::vector<std::int64_t> found;
  for (std::int64_t bits = hwy::SupportedTargets(); bits != 0; bits &= bits - 1) {
    const std::int64_t bit = bits & -bits;
    use_targets(bit);
    if (std::string_view(hwy::TargetName(bit)) == codec_kernel::target_name()) found.push_back(bit);
  }
  use_targets(0);
  return found;
}

}  // namespace lockstep::testing
