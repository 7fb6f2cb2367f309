// Calls that the library makes on an engine for itself, outside the numbering of the user's. They are for
// what happens below a Group: an engine that is being made or measured belongs to none yet. Whoever has a
// Group takes its all_gather and broadcast, which do the same for texts and numbers.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "comm/call/call.h"
#include "comm/call/engine.h"

namespace lockstep {

// In place, of bytes; waits as long as LOCKSTEP_TIMEOUT_S says.
Call internal_call(Collective what, void* data, std::size_t bytes, int root);

// For many meetings: made once, since it looks at the environment.
inline Call meeting_call() { return internal_call(Collective::barrier, nullptr, 0, -1); }

// Rank 0's.
void broadcast_bytes(Engine& engine, void* data, std::size_t bytes);
std::string broadcast_text(Engine& engine, std::string text);

// Everybody's in rank order, each of its own length.
std::vector<std::string> gather_texts(Engine& engine, std::string own, std::chrono::milliseconds timeout);

}  // namespace lockstep
