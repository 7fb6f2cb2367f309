// A module's buffers across lanes and workers: floating-point and complex ones (batch norm's statistics) are
// averaged in canonical order over the lanes, or workers, that ran a backward, by their weight; whole numbers
// (its counters) take the largest. Where nobody did, they stay as they are.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/comm/group.h"

namespace lockstep {

class BufferAverager {
 public:
  BufferAverager(torch::nn::Module& module, Group group);
  bool empty() const { return reals_.empty() && wholes_.empty(); }

  // Lanes: the first one keeps the buffers as the step's beginning, later ones start from it again.
  void begin_lane(int position);
  // What the lane made of them joins the sum; without `counts` (no backward) only its place is kept.
  void end_lane(int position, double weight, bool counts);

  // Begins the average over the lanes of all workers that were ended since the step began.
  void exchange_lanes();
  // Without lanes: over the workers, as they are. `counts`: this worker's do.
  void exchange_plain(bool counts);
  // Waits, and writes the averages into the module: the next step's beginning.
  void finish();
  // Waits for what is under way and forgets it.
  void abandon() noexcept;

  // The module's buffers as the step of lanes began.
  void restore();
  // Without lanes: as the exchange before, or the constructor, left them, but for those that somebody has
  // written to since (a checkpoint was loaded). Batch norm's forward is told from that by libtorch's version
  // counters, which it leaves alone.
  void restore_untouched();
  // In place of finish() where a step without lanes is void: as restore_untouched(), but for those that were
  // written to on any worker, be it by a forward (a mean that the model keeps itself): they become the
  // average, so that all workers have the same. Collective.
  void finish_void();

 private:
  // Of a module's tensor in the runs, and in begin_.
  struct Place {
    std::size_t run = 0;
    std::int64_t offset = 0;  // elements
  };
  void find_places();
  void renew_views();
  void check_in_place() const;
  torch::Tensor begin_of(const torch::Tensor& tensor, const Place& place) const;
  std::vector<std::int32_t> touched() const;  // one of reals_ each: was it written to since remember()?
  void restore_but(const std::vector<std::int32_t>& touched);
  void take_averages();
  void keep();        // as the step's beginning
  void remember();    // that what stands in reals_ was written by nobody else
  void pack();        // into the flat tensors
  void merge_last();  // the last two sums become one
  void send();

  Group group_;
  std::vector<torch::Tensor> reals_;
  std::vector<torch::Tensor> wholes_;
  std::vector<std::pair<torch::Tensor, std::size_t>> complexes_;  // and which of reals_ is a view of it
  // Where they lie: the tensors themselves, or on a device tensors that hold many of them side by side.
  std::vector<torch::Tensor> real_runs_, whole_runs_;
  std::vector<Place> places_;         // of reals_, then of wholes_
  std::int64_t doubles_ = 0;          // elements of real_runs_ that are f64; they come first
  torch::Tensor real_flat_;           // f64, in comm memory; the last element is the weight
  torch::Tensor whole_flat_;          // i64, in comm memory
  torch::Tensor extreme_flat_;        // f64, in comm memory: each f64 element, then each of their negatives
  std::vector<torch::Tensor> begin_;  // of the step, run by run
  // Of reals_ then. A tensor that is given other memory (set_data) keeps its version; memory that is held
  // here comes back to nobody.
  struct Kept {
    std::int64_t version;
    c10::Storage memory;
    bool holds(const torch::Tensor& tensor) const {
      return tensor._version() == version &&
             tensor.storage().unsafeGetStorageImpl() == memory.unsafeGetStorageImpl();
    }
  };
  std::vector<Kept> kept_;
  std::vector<torch::Tensor> sums_;  // of lanes, like the digits of a binary counter
  torch::Tensor largest_;            // of whole_flat_ over lanes
  torch::Tensor extreme_;            // of extreme_flat_ over lanes
  std::vector<Work> works_;
};

}  // namespace lockstep
