// Where an optimizer gets its gradients from, and what it is to update: what every strategy (DataParallel, …)
// offers.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

struct ElementRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t count() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

// What this worker updates of one parameter: all of it, or a run of its elements.
struct Slice {
  std::string name;                 // of the parameter
  std::vector<std::int64_t> whole;  // its sizes
  ElementRange elements = {};       // of those, in the order of the parameter's memory; may be none
  torch::Tensor parameter;          // the parameter itself, or a flat tensor on those elements
  torch::Tensor gradient = {};      // alike; undefined when no lane used the parameter in this step
};

// Slices' parameters that are not in memory all the time, but on disk: their tensors have memory only while
// somebody holds them. Used by one thread, but for read().
class SliceStore {
 public:
  virtual ~SliceStore() = default;

  // Of one that is not, tensors have memory all the time.
  virtual bool has(std::size_t slice) const = 0;
  // All slices: those that lie together, in the order in which to hold them. While one run is held the next
  // is read.
  virtual const std::vector<std::vector<std::size_t>>& runs() const = 0;
  // These slices, by their numbers, are in memory until the next hold(), or let_go(). `update`: what is
  // written to them is kept. Throws OffloadError.
  enum class Use : unsigned char { read, update };
  virtual void hold(std::span<const std::size_t> slices, Use use) = 0;
  // Returns when none is, and the disk has what was written. Throws OffloadError.
  virtual void let_go() = 0;
  // A step will hold all slices so often to read them, before it updates them: for what a step is said to
  // cost.
  virtual void announce_reads(int times) = 0;
  // A slice's bytes as they are on disk, in order, a piece at a time; on any thread, not beside hold().
  using Piece = std::function<void(std::span<const std::byte> bytes)>;
  virtual void read(std::size_t slice, const Piece& take) const = 0;
};

class GradientSource {
 public:
  virtual ~GradientSource() = default;

  // The parameters that are trained, each once, in registration order.
  virtual std::vector<NamedTensor> parameters() const = 0;
  // One a parameter, in the same order on every rank. Over all workers they cover each element of it. They
  // stay the same, but for the gradients, which are this step's after synchronize().
  virtual std::span<const Slice> slices() = 0;
  // Of slices that are on disk; null: all are in memory, all the time.
  virtual SliceStore* store() { return nullptr; }

  // Returns when every slice's gradient is the mean over all lanes of this step. Collective when this step's
  // gradients have not been exchanged yet.
  virtual void synchronize() = 0;
  // From the next step on: a step in which a gradient is not finite, on any worker, is void. overflowed()
  // then says so after synchronize(), to all alike and without asking anybody, and buffers such as batch
  // norm's are as the step found them; the gradients are there as they are. On every rank.
  virtual void watch_overflow(bool on) = 0;
  virtual bool overflowed() const = 0;
  // The slices are about to be updated: returns when no worker needs them as they are. Collective where
  // workers have them in one memory.
  virtual void begin_updates() = 0;
  // The slices were updated: returns when every worker has what the others have made of theirs. Collective
  // where slices are parts.
  virtual void share_updates() = 0;
  // The gradients have been used: what comes next belongs to the next step.
  virtual void end_step() = 0;

  // Things that are cut as the parameters are: gradients, an optimizer's state.
  //
  // parts[i] belongs to slices()[i] and has its form, or is undefined, on every rank alike; those of
  // parameters of one type are of one type, which may be another. Calls take(i, whole) on every rank, with
  // the parameter's sizes and strides, for all that are defined, in any order; `whole` is gone when that
  // returns. Collective where slices are parts.
  using Take = std::function<void(std::size_t i, const torch::Tensor& whole)>;
  virtual void join(const std::vector<torch::Tensor>& parts, const Take& take) = 0;
  // What belongs to slices()[i] of `whole`, which has the parameter's sizes. May share its memory.
  virtual torch::Tensor cut(std::size_t i, const torch::Tensor& whole) const = 0;
  // Figures of the parameters to which each worker adds what its slices give: every value becomes the sum
  // over the workers. Where slices are whole each worker has the sum already, and nothing happens. Collective
  // where slices are parts.
  virtual void add_parts(std::span<double> values) = 0;
};

}  // namespace lockstep
