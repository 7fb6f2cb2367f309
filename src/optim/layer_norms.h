// Norms over whole parameters of which each worker may have a part, with the same bits for any number of
// workers and any cut.
//
// A parameter is seen as blocks of a fixed number of elements (kernel::kBlockElements), counted from its
// first. The squares of a block are added up in f64 in a fixed order, and so are the blocks, one after the
// other. Who has a whole block adds it up alone. Of a block that a border cuts, the elements themselves are
// put together first, and everybody adds them up in that order.
//
// What the workers exchange, once a measurement, for two norms: 16 bytes a block of 512 elements (0.8 % of
// an f32 gradient), and 8 KiB a block that is cut, of which there is at most one a border: workers - 1 a
// bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/grad/gradient_source.h"
#include "optim/crew.h"
#include "optim/layer_kernels.h"

namespace lockstep {

class LayerNorms {
 public:
  // What this worker has of a parameter.
  struct Part {
    std::size_t whole = 0;  // elements of the parameter
    ElementRange own = {};  // of those
  };
  // Each value becomes the sum over the workers' (GradientSource::add_parts).
  using AddParts = std::function<void(std::span<double> values)>;
  // The two norms of one parameter.
  struct Norms {
    double first = 0;
    double second = 0;
  };
  // Writes the elements `range` of parameter `i`, which this worker has, as f64. Called once for each of its
  // blocks, by several threads.
  using Values = std::function<void(std::size_t i, const ElementRange& range, double* first, double* second)>;

  // Learns which blocks are cut. Collective, as add_parts is, which has to outlive this.
  LayerNorms(std::vector<Part> parts, AddParts add_parts);

  // Of the parameters that are `wanted`, on every rank alike; 0 of the others. Collective.
  std::vector<Norms> measure(const std::vector<bool>& wanted, const Values& values, Crew& crew,
                             std::size_t threads);
  // The same where the parameters are on a device: `add_up` has its kernels write the sums there, which are
  // fetched (a rate is for the host to know) and put together here.
  using AddUp = std::function<void(const kernel::LayerSums& to)>;
  std::vector<Norms> measure_there(const std::vector<bool>& wanted, torch::Device device,
                                   const AddUp& add_up);
  std::size_t first_block(std::size_t parameter) const { return first_block_[parameter]; }

  // The same in several calls, for values that are not there all at once: begin(), the blocks of each
  // parameter that is wanted once, in any order, and end(), which is collective.
  struct Run {
    std::size_t parameter = 0;
    ElementRange elements = {};  // of this worker's, and they begin and end where blocks or its part do
  };
  void begin();
  void add(std::span<const Run> runs, const Values& values, Crew& crew, std::size_t threads);
  std::vector<Norms> end(const std::vector<bool>& wanted);

 private:
  static constexpr std::int32_t kNotCut = -1;
  struct Task {  // blocks of one parameter, of which this worker has something
    std::size_t parameter;
    std::size_t begin, end;
  };
  std::size_t blocks_of(std::size_t parameter) const;
  double* elements_of(std::int32_t cut, int which);
  void find_cuts();
  void add_up_own(const Task& task, const Values& values);
  void add_up_cut();
  Norms norms_of(std::size_t parameter) const;

  std::vector<Part> parts_;
  AddParts add_parts_;
  std::vector<std::size_t> first_block_;  // of each parameter, among all; one more than there are parameters
  std::vector<std::int32_t> cut_;         // of each block: its number among the cut ones, or kNotCut
  std::int32_t cuts_ = 0;
  std::vector<double> values_;              // two sums a block, then two times the elements of each cut block
  torch::Tensor values_there_, cut_there_;  // values_ and cut_ on the device, once it is asked
};

}  // namespace lockstep
