// Checkpoints while the run goes on: every worker copies what is its to save, and a thread of its own writes
// that to the checkpoint's hidden folder; when all have written, rank 0 publishes.
//
// The run goes on at once. What is saved changes with the next update only, so that copying, too, goes on
// beside the next step, and hold_update() waits for what is left of it. Nothing is sent meanwhile but a
// number a step, by which all workers know how far all are (standing(), advance()): threads that write use no
// group. State on disk (offload) is not copied: it is read and written on, and the next update waits for
// that.
//
// A worker that does not see the folder, because its machine has another disk, sends its part to rank 0
// before the run goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/group.h"
#include "train/saved_state.h"

namespace lockstep {

// What became of one checkpoint.
struct SaveReport {
  std::filesystem::path folder;
  double pause_ms = 0;             // that this worker's training stood still for it
  double write_ms = 0;             // of copying, writing and publishing, on this worker
  std::uint64_t copied_bytes = 0;  // memory that this worker's copies took
};

class Saver {
 public:
  // `published` is called on every rank, in a call of this, when a checkpoint is there.
  using Published = std::function<void(const SaveReport& report)>;
  enum class Mode : bool {
    at_once,  // begin() returns when it is there
    in_background,
  };
  Saver(Group world, CheckpointStore store, Mode mode, Published published);
  // Waits for this worker's own thread. What rank 0 has to publish by itself is published and told.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Begins; one that is under way is waited for before. `since_ns`: when the run stood still for it.
  // Collective; throws what wait() does, when there is no place for the checkpoint, and OffloadError on a
  // rank that can't send its state because it can't read it, while the others wait.
  void begin(std::int64_t step, SavedState state, const SliceOwners& owners, std::int64_t since_ns);
  // Returns when nothing that is to be saved is needed any more as it is: before every update, on all ranks.
  // Where state is on disk the ranks meet meanwhile, as in wait().
  void hold_update();

  // How far this worker is, for everybody.
  double standing() const;
  // What all of them say, the same on every rank: the next thing is begun, or the end told. Collective.
  // Throws, on all ranks, what one of them could not do: nothing of that checkpoint is left then.
  void advance(std::span<const double> standings);
  // Until nothing is under way. Collective; throws likewise. Meanwhile the ranks meet, so that a slow disk is
  // not taken for a lost rank.
  void wait();

  bool busy() const;

 private:
  enum class Standing : std::uint8_t { idle, busy, done, failed, refused };
  struct Job;
  void end_job();

  Group world_;
  CheckpointStore store_;
  Mode mode_;
  Published published_;
  std::unique_ptr<Job> job_;  // under way
};

}  // namespace lockstep
