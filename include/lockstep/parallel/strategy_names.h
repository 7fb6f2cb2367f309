// What make_strategy() knows (strategies.h), for those who only want the names.
#pragma once

namespace lockstep {

inline constexpr const char* kStrategyNames[] = {"ddp", "zero1", "zero2", "zero3", "hybrid-shard"};

}  // namespace lockstep
