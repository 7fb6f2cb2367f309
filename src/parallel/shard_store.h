// This worker's parts of units' parameters, on disk: one scratch file, and memory for what is on its way.
//
// A bucket has one part or more (parameter_units.h), one of which this worker updates. Two threads use it,
// never at the same time for the same bytes:
//
//   the line's, in passes   expect(2)  fetch(1)  gather 1  expect(3)  fetch(2) …    the next is read
//   meanwhile the optimizer's         hold(1)  update 1  hold(2) …                            1 is written, 3
//   is read
#pragma once

#include <torch/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/grad/gradient_source.h"
#include "lockstep/offload/offload.h"
#include "offload/aligned_memory.h"
#include "offload/mover.h"
#include "offload/pager.h"
#include "offload/step_waits.h"

namespace lockstep {

class ShardStore final : public SliceStore {
 public:
  struct Form {
    std::size_t part_bytes = 0;
    std::size_t parts = 1;
    std::size_t own = 0;  // the part that this worker updates
  };
  // Makes the file with room for all, and measures the disk. Throws OffloadError.
  ShardStore(const Offload& offload, std::vector<Form> buckets, std::size_t slices);
  ~ShardStore() override;

  // Part by part, through a buffer. Throw OffloadError.
  void write_part(int bucket, std::size_t part, std::span<const std::byte> bytes);
  void read_part(int bucket, std::size_t part, std::span<std::byte> bytes) const;

  // This slice's parameter lies in the own part of a bucket, from this byte on.
  void add_slice(std::size_t slice, const torch::Tensor& parameter, int bucket, std::size_t offset);

  // Of the line's thread. Begins to read a bucket, unless it does already, into the memory of the last but
  // one that was expected or fetched.
  void expect(int bucket);
  // Its parts, each stride(bucket) behind the one before; until the next but one that is fetched. Throws
  // OffloadError.
  const std::byte* fetch(int bucket);
  std::size_t stride(int bucket) const;
  // The line has, or will have, something to read; and not any more, until it says so again. Meanwhile its
  // memory is for updates.
  void begin_passes() { resting_ = false; }
  void rest() { resting_ = true; }

  bool has(std::size_t slice) const override { return places_[slice].bucket >= 0; }
  const std::vector<std::vector<std::size_t>>& runs() const override;
  void hold(std::span<const std::size_t> slices, Use use) override;
  void let_go() override;
  void announce_reads(int times) override { reads_of_step_ = times; }
  void read(std::size_t slice, const Piece& take) const override;

  // Memory that it had at most.
  std::size_t peak_bytes() const { return peak_; }
  // Somebody waits for a gather: what it waits for the disk meanwhile counts. And no longer.
  void begin_wait();
  void end_wait() { waiting_since_ = 0; }
  // A step is over: what was waited since the last one is its waiting.
  void end_step() { waits_.end_step(waited_ns_ + update_.waited_ns()); }
  // `lanes`: forwards and backwards in a step.
  OffloadFigures figures(int lanes) const;

 private:
  struct Slot {  // of memory that the line reads into
    int bucket = -1;
    AlignedMemory memory = {};
    Mover::Ticket ticket = 0;
    std::int64_t used = 0;  // when: the older one is given to the next
  };
  struct Window {  // an own part in memory for the optimizer
    int bucket = -1;
    AlignedMemory memory = {};
    enum class State : unsigned char { reading, there, writing } state = State::reading;
    bool written = false;
    Mover::Ticket ticket = 0;
  };
  struct Place {
    c10::Storage storage = {};
    int bucket = -1;  // of none: in memory
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  std::uint64_t at(int bucket, std::size_t part) const;
  AlignedMemory memory(std::size_t bytes);
  AlignedMemory window_memory(std::size_t bytes);
  void give_back(AlignedMemory memory);
  void lend_slots();
  void return_slots();
  Slot* begin_read(int bucket);
  Window* find(int bucket);
  Window& bring(int bucket);
  void settle(Window& window);  // reads and writes of it are through
  void fill(int bucket, std::byte* with);
  void write_back(Window& window);
  void write_out(std::span<const int> but);
  void let_out(std::size_t most);  // waits until at most so many are on their way out

  std::vector<Form> forms_;
  std::vector<std::uint64_t> begins_;
  DiskRates rates_;
  ScratchFile file_;
  std::vector<Place> places_;  // of slices
  mutable std::vector<std::vector<std::size_t>> runs_;
  std::vector<std::unique_ptr<Window>> windows_;
  std::vector<AlignedMemory> spare_;  // for windows, in this step
  Slot slots_[2];
  std::int64_t clock_ = 0;
  int reads_of_step_ = 0;
  std::atomic<bool> resting_ = true;
  bool lent_ = false;  // slots are for updates
  std::atomic<std::size_t> now_ = 0, peak_ = 0;
  std::atomic<std::int64_t> waiting_since_ = 0, waited_ns_ = 0;
  StepWaits waits_;
  Mover gather_, update_;  // last: they wait for what goes to and from the others
};

}  // namespace lockstep
