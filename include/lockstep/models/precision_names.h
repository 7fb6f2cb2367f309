// What --precision takes, for flags that know nothing of libtorch.
#pragma once

namespace lockstep {

inline constexpr const char* kPrecisionNames[] = {"fp32", "bf16", "fp16", "bf16-autocast"};

}  // namespace lockstep
