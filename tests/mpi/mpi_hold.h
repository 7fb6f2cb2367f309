// A rank that stands still inside MPI, at a point that the test chooses, until its peers say that they are
// done: the test's own MPI_Iallreduce and MPI_Irecv stand before MPI's. And other ways to be let down.
#pragma once

namespace lockstep::testing {

enum class At { nowhere, all_reduce, receive };

// From now on this rank stops at the first such call until every other rank has called let_go().
void hold_at(At where);
// The same at once.
void hold();
// Tells `rank` that it may go on.
void let_go(int rank);

// The next message whose end this rank is told of ends with an error of MPI's.
void fail_next_message();

// The next memory for a part of a message is not there.
void deny_next_memory();
// How often this rank has taken a request back.
int requests_taken_back();

// Whoever takes part here waits for all others that do, and lets MPI move what it has to move meanwhile.
// `gone`: a rank that does not come, or -1.
void meet_again(int gone);

}  // namespace lockstep::testing
