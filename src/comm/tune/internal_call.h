// Calls of the tuning itself, outside the numbering of the user's.
#pragma once

#include <cstddef>

#include "comm/call/call.h"
#include "comm/call/engine.h"
#include "lockstep/base/knobs.h"

namespace lockstep {

inline Call internal_call(Collective what, void* data, std::size_t bytes, int root) {
  Call call;
  call.what = what;
  call.in = data;
  call.out = data;
  call.count = bytes;
  call.dtype = DType::u8;
  call.root = root;
  call.timeout = Knobs::from_environment().timeout;
  return call;
}

inline void broadcast_bytes(Engine& engine, void* data, std::size_t bytes) {
  engine.run(internal_call(Collective::broadcast, data, bytes, 0));
}

// For many meetings: made once, since it looks at the environment.
inline Call meeting_call() { return internal_call(Collective::barrier, nullptr, 0, -1); }

}  // namespace lockstep
