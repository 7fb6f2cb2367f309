#include "comm/channel/mpi_line.h"

#include <new>

namespace lockstep::mpi {

Line::Line(MPI_Comm comm) : comm_(comm) {
  call("MPI_Comm_set_errhandler", [&] { return MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN); });
  call("MPI_Comm_rank", [&] { return MPI_Comm_rank(comm_, &rank_); });
  call("MPI_Comm_size", [&] { return MPI_Comm_size(comm_, &size_); });
  peers_.resize(static_cast<std::size_t>(size_));
}

Line::~Line() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0 || failure_.any()) return;
  const auto door = Runtime::get().door();
  MPI_Comm_free(&comm_);
}

void Line::fail(const Error& error) noexcept {
  try {
    Note note{.kind = Kind::failure, .record = record_of(error)};
    if (!failure_.keep(note.record)) return;
    Runtime::get().failed();
    tell(note);
  } catch (...) {  // the peers run into their timeouts, then
  }
}

// The buffers and requests stay in sent_ until MPI is done with them: nothing here waits.
void Line::tell(const Note& note) {
  const std::lock_guard lock(mutex_);
  forget_sent();
  Sent& sent = sent_.emplace_back();
  sent.note = note;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    const auto door = Runtime::get().door();
    // A peer that can't be told is gone or will see for itself.
    if (MPI_Isend(&sent.note, sizeof(Note), MPI_BYTE, peer, kControlTag, comm_, &request) == MPI_SUCCESS)
      sent.requests.push_back(request);
  }
}

void Line::listen() {
  for (;;) {
    const std::lock_guard lock(mutex_);
    Note note;
    int there = 0;
    MPI_Status status;
    call("MPI_Improbe", [&] {
      MPI_Message message = MPI_MESSAGE_NULL;
      int code = MPI_Improbe(MPI_ANY_SOURCE, kControlTag, comm_, &there, &message, &status);
      if (code != MPI_SUCCESS || there == 0) return code;
      return MPI_Mrecv(&note, sizeof note, MPI_BYTE, &message, &status);
    });
    if (there == 0) return;
    take(status.MPI_SOURCE, note);
  }
}

void Line::take(int from, const Note& note) {
  Peer& peer = peers_.at(static_cast<std::size_t>(from));
  switch (note.kind) {
    case Kind::failure: failure_.keep(note.record); return;
    case Kind::waiting:
      peer.waits_ns = now_ns();
      peer.waits_in = note.card;
      peer.waits_for = note.record.missing;
      return;
    case Kind::leaving: peer.left = true; return;
  }
}

void Line::say_waiting(const CallCard& card, const std::vector<int>& waits_for) {
  Note note{.kind = Kind::waiting, .card = card};
  note.record.missing = mask_of(waits_for);
  tell(note);
}

std::optional<Line::Waiting> Line::waits(int rank) const {
  const std::lock_guard lock(mutex_);
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (!peer.waits()) return std::nullopt;
  return Waiting{peer.waits_in, peer.waits_for.ranks()};
}

void Line::leave() { tell({.kind = Kind::leaving}); }

bool Line::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(rank)].left;
}

void Line::forget_sent() {
  std::erase_if(sent_, [](Sent& sent) {
    int done = 0;
    const auto door = Runtime::get().door();
    const int count = static_cast<int>(sent.requests.size());
    return MPI_Testall(count, sent.requests.data(), &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS && done != 0;
  });
}

bool Line::deserted() {
  const std::lock_guard lock(mutex_);
  if (failure_.any()) return false;
  for (int r = 0; r < size_; ++r)
    if (r != rank_ && !peers_[static_cast<std::size_t>(r)].left) return false;
  forget_sent();
  return sent_.empty();
}

void Line::keep(std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(memory));
}

}  // namespace lockstep::mpi
