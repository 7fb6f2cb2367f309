#include "mpi/mpi_hold.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

namespace lockstep::testing {
namespace {

constexpr int kLetGo = 77;
constexpr int kMeetAgain = 78;
std::atomic<At> held{At::nowhere};
std::atomic<bool> fails_next{false};
std::atomic<bool> denies_next{false};
std::atomic<int> taken_back{0};

struct Place {
  int rank = 0;
  int size = 1;
  Place() {
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
  }
};

// Asked for again and again, not waited for: MPI moves everything else too while it is asked.
void take(int from, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  PMPI_Irecv(nullptr, 0, MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
  for (int done = 0; done == 0;) {
    PMPI_Test(&request, &done, MPI_STATUS_IGNORE);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void stop_at(At where) {
  At expected = where;
  if (held.compare_exchange_strong(expected, At::nowhere)) hold();
}

}  // namespace

void hold_at(At where) { held = where; }
void fail_next_message() { fails_next = true; }
void deny_next_memory() { denies_next = true; }
int requests_taken_back() { return taken_back; }

void hold() {
  const Place here;
  for (int r = 0; r < here.size; ++r)
    if (r != here.rank) take(r, kLetGo);
}

void let_go(int rank) { PMPI_Send(nullptr, 0, MPI_BYTE, rank, kLetGo, MPI_COMM_WORLD); }

void meet_again(int gone) {
  const Place here;
  for (int r = 0; r < here.size; ++r)
    if (r != here.rank && r != gone) PMPI_Send(nullptr, 0, MPI_BYTE, r, kMeetAgain, MPI_COMM_WORLD);
  for (int r = 0; r < here.size; ++r)
    if (r != here.rank && r != gone) take(r, kMeetAgain);
}

}  // namespace lockstep::testing

extern "C" {

int MPI_Iallreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
  lockstep::testing::stop_at(lockstep::testing::At::all_reduce);
  return PMPI_Iallreduce(in, out, count, type, op, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  lockstep::testing::stop_at(lockstep::testing::At::receive);
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

int MPI_Testsome(int many, MPI_Request requests[], int* count, int indices[], MPI_Status statuses[]) {
  const int code = PMPI_Testsome(many, requests, count, indices, statuses);
  if (code != MPI_SUCCESS || *count == MPI_UNDEFINED || *count == 0 ||
      !lockstep::testing::fails_next.exchange(false))
    return code;
  for (int i = 0; i < *count; ++i) statuses[i].MPI_ERROR = i == 0 ? MPI_ERR_OTHER : MPI_SUCCESS;
  return MPI_ERR_IN_STATUS;
}

int MPI_Cancel(MPI_Request* request) {
  ++lockstep::testing::taken_back;
  return PMPI_Cancel(request);
}
}

// Large blocks of bytes are those of messages' parts.
void* operator new[](std::size_t bytes) {
  constexpr std::size_t kPart = std::size_t{512} << 10;
  if (bytes == kPart && lockstep::testing::denies_next.exchange(false)) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
