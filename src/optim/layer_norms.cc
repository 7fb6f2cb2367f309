#include "optim/layer_norms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "optim/layer_kernels.h"

namespace lockstep {
namespace {

using kernel::kBlockElements;

constexpr std::size_t kTaskBlocks = 64;  // what one thread takes at a time

}  // namespace

LayerNorms::LayerNorms(std::vector<Part> parts, AddParts add_parts)
    : parts_(std::move(parts)), add_parts_(std::move(add_parts)) {
  first_block_.push_back(0);
  for (const Part& part : parts_)
    first_block_.push_back(first_block_.back() + (part.whole + kBlockElements - 1) / kBlockElements);
  find_cuts();
}

std::size_t LayerNorms::blocks_of(std::size_t parameter) const {
  return first_block_[parameter + 1] - first_block_[parameter];
}

// Whoever has a part of a block says so.
void LayerNorms::find_cuts() {
  std::vector<double> partial(first_block_.back(), 0);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& [whole, own] = parts_[i];
    if (own.count() == 0) continue;
    double* const marks = partial.data() + first_block_[i];
    if (own.begin % kBlockElements != 0) marks[own.begin / kBlockElements] = 1;
    if (own.end % kBlockElements != 0 && own.end != whole) marks[own.end / kBlockElements] = 1;
  }
  add_parts_(partial);
  for (const double mark : partial) cut_.push_back(mark > 0 ? cuts_++ : kNotCut);
  values_.resize(2 * partial.size() + 2 * kBlockElements * static_cast<std::size_t>(cuts_));
}

double* LayerNorms::elements_of(std::int32_t cut, int which) {
  const std::size_t at = 2 * static_cast<std::size_t>(cut) + static_cast<std::size_t>(which);
  return values_.data() + 2 * cut_.size() + kBlockElements * at;
}

void LayerNorms::add_up_own(const Task& task, const Values& values) {
  const auto& [whole, own] = parts_[task.parameter];
  for (std::size_t block = task.begin; block < task.end; ++block) {
    const std::size_t begin = block * kBlockElements;
    const ElementRange range = {std::max(own.begin, begin), std::min(own.end, begin + kBlockElements)};
    const std::size_t at = first_block_[task.parameter] + block;
    if (cut_[at] != kNotCut) {
      const std::size_t offset = range.begin - begin;
      values(task.parameter, range, elements_of(cut_[at], 0) + offset, elements_of(cut_[at], 1) + offset);
      continue;
    }
    double first[kBlockElements], second[kBlockElements];
    values(task.parameter, range, first, second);
    values_[2 * at] = kernel::sum_of_squares(first, range.count());
    values_[2 * at + 1] = kernel::sum_of_squares(second, range.count());
  }
}

// Elements that a block has not, behind a parameter's last, are zeros, which change no sum.
void LayerNorms::add_up_cut() {
  for (std::size_t at = 0; at < cut_.size(); ++at)
    if (cut_[at] != kNotCut)
      for (const int which : {0, 1})
        values_[2 * at + static_cast<std::size_t>(which)] =
            kernel::sum_of_squares(elements_of(cut_[at], which), kBlockElements);
}

LayerNorms::Norms LayerNorms::norms_of(std::size_t parameter) const {
  Norms sum;
  const double* at = values_.data() + 2 * first_block_[parameter];
  for (std::size_t block = 0; block < blocks_of(parameter); ++block, at += 2) {
    sum.first += at[0];
    sum.second += at[1];
  }
  return {std::sqrt(sum.first), std::sqrt(sum.second)};
}

std::vector<LayerNorms::Norms> LayerNorms::measure(const std::vector<bool>& wanted, const Values& values,
                                                   Crew& crew, std::size_t threads) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < parts_.size(); ++i)
    if (wanted[i]) runs.push_back({i, parts_[i].own});
  begin();
  add(runs, values, crew, threads);
  return end(wanted);
}

void LayerNorms::begin() { std::ranges::fill(values_, 0.0); }

void LayerNorms::add(std::span<const Run> runs, const Values& values, Crew& crew, std::size_t threads) {
  std::vector<Task> tasks;
  for (const auto& [parameter, elements] : runs) {
    if (elements.count() == 0) continue;
    const std::size_t last = (elements.end + kBlockElements - 1) / kBlockElements;
    for (std::size_t at = elements.begin / kBlockElements; at < last; at += kTaskBlocks)
      tasks.push_back({parameter, at, std::min(at + kTaskBlocks, last)});
  }
  crew.run(tasks.size(), threads, [&](std::size_t k) { add_up_own(tasks[k], values); });
}

std::vector<LayerNorms::Norms> LayerNorms::measure_there(const std::vector<bool>& wanted,
                                                         torch::Device device, const AddUp& add_up) {
  const auto there = torch::TensorOptions().device(device);
  if (!values_there_.defined()) {
    values_there_ = torch::empty({static_cast<std::int64_t>(values_.size())}, there.dtype(torch::kFloat64));
    cut_there_ = torch::tensor(cut_, torch::kInt32).to(device);
  }
  values_there_.zero_();
  add_up({.values = values_there_.data_ptr<double>(),
          .cut = cut_there_.data_ptr<std::int32_t>(),
          .blocks = cut_.size()});
  const torch::Tensor here = values_there_.cpu();
  std::copy_n(here.data_ptr<double>(), values_.size(), values_.begin());
  return end(wanted);
}

std::vector<LayerNorms::Norms> LayerNorms::end(const std::vector<bool>& wanted) {
  add_parts_(values_);
  add_up_cut();
  std::vector<Norms> norms(parts_.size());
  for (std::size_t i = 0; i < norms.size(); ++i)
    if (wanted[i]) norms[i] = norms_of(i);
  return norms;
}

}  // namespace lockstep
