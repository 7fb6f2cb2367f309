// What tests may say to the emulated GPU (card.cc).
#pragma once

namespace lockstep::emulated {

// Whether it has stream memory operations, and whether it takes host memory for them. Both at first.
void have_memory_ops(bool yes);
void register_host_memory(bool yes);

// All streams share one queue, in the order in which pieces were put there: what waits for something that
// comes later there waits for ever. Not at first.
void share_one_queue(bool yes);

// Pieces that wait for a number, or write one, that were ever put on streams.
unsigned long memory_ops();

}  // namespace lockstep::emulated
