#include "parallel/buffers.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "grad/torch_types.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// One after the other into a flat tensor, or back.
void gather(const std::vector<torch::Tensor>& from, const torch::Tensor& flat) {
  std::int64_t at = 0;
  for (const torch::Tensor& tensor : from) {
    flat.narrow(0, at, tensor.numel()).copy_(tensor.reshape({-1}));
    at += tensor.numel();
  }
}

void scatter(const torch::Tensor& flat, const std::vector<torch::Tensor>& to) {
  std::int64_t at = 0;
  for (const torch::Tensor& tensor : to) {
    tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

std::int64_t elements(const std::vector<torch::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const torch::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

// Tensors on a device side by side in memory of one type, each on a boundary of its own, so that what is done
// to all of them is one operation rather than one each. What can't move, and what is on the processor, where
// an operation costs next to nothing, stays as it is.
std::vector<torch::Tensor> side_by_side(const std::vector<torch::Tensor>& tensors) {
  constexpr std::int64_t kBoundary = 64;  // bytes
  const auto room = [](const torch::Tensor& tensor) {
    const auto step = kBoundary / static_cast<std::int64_t>(tensor.element_size());
    return (tensor.numel() + step - 1) / step * step;
  };
  const auto moves = [](const torch::Tensor& tensor) {
    return !tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_view();
  };
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> runs;
  for (std::size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    const torch::Tensor& first = tensors[begin];
    std::int64_t count = 0;
    for (end = begin;
         end < tensors.size() && moves(tensors[end]) && tensors[end].scalar_type() == first.scalar_type();
         ++end)
      count += room(tensors[end]);
    if (end == begin) {
      runs.push_back(first);
      ++end;
      continue;
    }
    runs.push_back(torch::zeros({count}, first.options().requires_grad(false)));
    std::int64_t at = 0;
    for (std::size_t k = begin; k < end; ++k) {
      torch::Tensor tensor = tensors[k];
      const torch::Tensor place = runs.back().narrow(0, at, tensor.numel()).view(tensor.sizes());
      place.copy_(tensor);
      tensor.set_data(place);
      at += room(tensor);
    }
  }
  return runs;
}

torch::Tensor flat_in(const CommMemory& memory, std::int64_t count, DType dtype) {
  return tensor_at({memory.data(), static_cast<std::size_t>(count), dtype, memory.device()},
                   std::make_shared<CommMemory>(memory));
}

// Of a module's buffers, the same for all.
Device device_of_buffers(const torch::nn::Module& module) {
  std::optional<Device> device;
  for (const auto& entry : module.named_buffers()) {
    if (!entry.value().defined() || entry.value().numel() == 0) continue;
    const Device its = device_of(entry.value(), "buffer '" + entry.key() + "'");
    if (device && !(*device == its))
      throw UsageError("buffer '" + entry.key() + "' is on " + to_string(its) + ", others on " +
                       to_string(*device) + "; accepted: all on one device");
    device = its;
  }
  return device.value_or(Device());
}

}  // namespace

// Sums in f64: an average of equal numbers is then that number, and f32 statistics lose nothing on the way.
// f64 itself has no wider type to add up in, so there the average is kept between the smallest and the
// largest.
BufferAverager::BufferAverager(torch::nn::Module& module, Group group) : group_(std::move(group)) {
  std::vector<torch::Tensor> narrow;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> views;
  for (const torch::Tensor& buffer : module.buffers()) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    const torch::Tensor real = buffer.is_complex() ? torch::view_as_real(buffer) : buffer;
    if (buffer.is_complex()) views.emplace_back(buffer, real);
    if (!real.is_floating_point())
      wholes_.push_back(real);
    else if (real.scalar_type() == torch::kFloat64)
      reals_.push_back(real);
    else
      narrow.push_back(real);
  }
  real_runs_ = side_by_side(reals_);
  doubles_ = elements(real_runs_);
  const std::vector<torch::Tensor> narrow_runs = side_by_side(narrow);
  real_runs_.insert(real_runs_.end(), narrow_runs.begin(), narrow_runs.end());
  reals_.insert(reals_.end(), narrow.begin(), narrow.end());
  whole_runs_ = side_by_side(wholes_);
  const std::int64_t reals = elements(real_runs_) + 1;
  const std::int64_t wholes = elements(whole_runs_);
  const auto bytes = [](std::int64_t count) {
    return static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * 8;
  };
  const Device device = device_of_buffers(module);
  real_flat_ = flat_in(group_.allocate(bytes(reals), device), reals, DType::f64);
  whole_flat_ = flat_in(group_.allocate(bytes(wholes), device), wholes, DType::i64);
  extreme_flat_ = flat_in(group_.allocate(bytes(2 * doubles_), device), 2 * doubles_, DType::f64);
  find_places();
  for (const auto& [buffer, view] : views) {
    const auto same = [&, real = view](const torch::Tensor& tensor) { return tensor.is_same(real); };
    complexes_.emplace_back(buffer, std::ranges::find_if(reals_, same) - reals_.begin());
  }
  keep();
}

// A complex buffer is averaged through a view of its numbers. Where the buffer is given other memory the view
// stays behind, while a real one, which is the module's tensor itself, goes along.
void BufferAverager::renew_views() {
  for (const auto& [buffer, k] : complexes_) {
    if (reals_[k].data_ptr() == buffer.data_ptr()) continue;
    reals_[k] = real_runs_[places_[k].run] = torch::view_as_real(buffer);  // views are runs of their own
  }
}

void BufferAverager::find_places() {
  std::size_t run = 0;
  const auto find = [&](const std::vector<torch::Tensor>& tensors, const std::vector<torch::Tensor>& runs) {
    for (const torch::Tensor& tensor : tensors) {
      const auto offset_in = [&](const torch::Tensor& whole) {
        return static_cast<const std::byte*>(tensor.data_ptr()) -
               static_cast<const std::byte*>(whole.data_ptr());
      };
      const auto in = std::ranges::find_if(runs, [&](const torch::Tensor& whole) {
        return whole.is_same(tensor) || (!whole.device().is_cpu() && offset_in(whole) >= 0 &&
                                         offset_in(whole) < static_cast<std::ptrdiff_t>(whole.nbytes()));
      });
      TORCH_INTERNAL_ASSERT(in != runs.end(), "a buffer lies in no run");
      places_.push_back({run + static_cast<std::size_t>(in - runs.begin()),
                         offset_in(*in) / static_cast<std::ptrdiff_t>(tensor.element_size())});
    }
    run += runs.size();
  };
  find(reals_, real_runs_);
  find(wholes_, whole_runs_);
}

// Nothing tells a module's buffer that lies elsewhere by now from one that nobody has changed.
void BufferAverager::check_in_place() const {
  std::size_t k = 0;
  for (const auto* list : {&reals_, &wholes_})
    for (const torch::Tensor& tensor : *list) {
      const auto [run, offset] = places_[k++];
      const torch::Tensor& in =
          run < real_runs_.size() ? real_runs_[run] : whole_runs_[run - real_runs_.size()];
      if (tensor.device().is_cpu()) continue;
      if (static_cast<const std::byte*>(in.data_ptr()) + offset * tensor.element_size() != tensor.data_ptr())
        throw UsageError(
            "a buffer of the model was given other memory after the model was wrapped, so its average would "
            "be lost; change it in place (copy_), or wrap the model again");
    }
}

torch::Tensor BufferAverager::begin_of(const torch::Tensor& tensor, const Place& place) const {
  const torch::Tensor& run = begin_[place.run];
  if (run.sizes() == tensor.sizes()) return run;
  return run.narrow(0, place.offset, tensor.numel()).view(tensor.sizes());
}

void BufferAverager::keep() {
  const torch::NoGradGuard no_grad;
  renew_views();
  begin_.resize(real_runs_.size() + whole_runs_.size());
  std::size_t k = 0;
  for (const auto* list : {&real_runs_, &whole_runs_})
    for (const torch::Tensor& tensor : *list) {
      if (begin_[k].defined())
        begin_[k].copy_(tensor);
      else
        begin_[k] = tensor.clone();
      ++k;
    }
  remember();
}

void BufferAverager::remember() {
  kept_.clear();
  for (const torch::Tensor& tensor : reals_) kept_.push_back({tensor._version(), tensor.storage()});
}

std::vector<std::int32_t> BufferAverager::touched() const {
  std::vector<std::int32_t> touched;
  for (std::size_t k = 0; k < reals_.size(); ++k) touched.push_back(kept_[k].holds(reals_[k]) ? 0 : 1);
  return touched;
}

void BufferAverager::restore_but(const std::vector<std::int32_t>& touched) {
  const torch::NoGradGuard no_grad;
  for (std::size_t k = 0; k < reals_.size(); ++k)
    if (touched[k] == 0) reals_[k].copy_(begin_of(reals_[k], places_[k]));
  // Counters are written to in every forward; they go with the statistics beside them.
  if (!reals_.empty() && std::ranges::count(touched, 0) == std::ssize(touched))
    for (std::size_t k = 0; k < wholes_.size(); ++k)
      wholes_[k].copy_(begin_of(wholes_[k], places_[reals_.size() + k]));
  keep();
}

void BufferAverager::restore_untouched() {
  renew_views();
  restore_but(touched());
}

void BufferAverager::finish_void() {
  renew_views();
  std::vector<std::int32_t> anywhere = touched();
  if (!anywhere.empty() && group_.size() > 1)
    group_.all_reduce(buffer(anywhere), {.op = ReduceOp::max, .purpose = "buffers of a step that is void"});
  take_averages();
  restore_but(anywhere);
}

void BufferAverager::restore() {
  const torch::NoGradGuard no_grad;
  renew_views();
  std::size_t k = 0;
  for (const auto* list : {&real_runs_, &whole_runs_})
    for (const torch::Tensor& tensor : *list) tensor.copy_(begin_[k++]);
  remember();
}

void BufferAverager::begin_lane(int position) {
  if (position > 0) return restore();
  sums_.clear();
  largest_ = extreme_ = torch::Tensor();
  keep();
}

void BufferAverager::pack() {
  renew_views();
  check_in_place();
  gather(real_runs_, real_flat_);
  real_flat_[-1] = 1;
  gather(whole_runs_, whole_flat_);
  const torch::Tensor doubles = real_flat_.narrow(0, 0, doubles_);
  extreme_flat_.narrow(0, 0, doubles_).copy_(doubles);
  extreme_flat_.narrow(0, doubles_, doubles_).copy_(doubles.neg());
}

void BufferAverager::merge_last() {
  sums_[sums_.size() - 2].add_(sums_.back());
  sums_.pop_back();
}

void BufferAverager::end_lane(int position, double weight, bool counts) {
  const torch::NoGradGuard no_grad;
  if (counts) {
    pack();
    sums_.push_back(weight == 1 ? real_flat_.clone() : real_flat_ * weight);
    largest_ = largest_.defined() ? torch::maximum(largest_, whole_flat_) : whole_flat_.clone();
    extreme_ = extreme_.defined() ? torch::maximum(extreme_, extreme_flat_) : extreme_flat_.clone();
  } else {
    sums_.push_back(torch::full_like(real_flat_, -0.0));  // changes nothing when added
  }
  for (int done = position + 1; done % 2 == 0; done /= 2) merge_last();
}

// A worker of which no lane counts says nothing: zeros, no weight, the counters as the step began.
void BufferAverager::exchange_lanes() {
  const torch::NoGradGuard no_grad;
  if (empty()) return;
  while (sums_.size() > 1) merge_last();
  if (largest_.defined()) {
    real_flat_.copy_(sums_.back());
    whole_flat_.copy_(largest_);
    extreme_flat_.copy_(extreme_);
    send();
  } else {
    restore();
    exchange_plain(false);
  }
}

void BufferAverager::exchange_plain(bool counts) {
  const torch::NoGradGuard no_grad;
  if (empty() || (group_.size() == 1 && counts)) return;
  pack();
  if (!counts) {
    real_flat_.fill_(-0.0);
    extreme_flat_.fill_(-std::numeric_limits<double>::infinity());
  }
  send();
}

void BufferAverager::send() {
  works_.clear();
  const auto reduce = [&](const torch::Tensor& flat, ReduceOp op) {
    if (flat.numel() > 0)
      works_.push_back(group_.all_reduce_async(buffer_of(flat, "the model's buffers"), {.op = op}));
  };
  if (!reals_.empty()) reduce(real_flat_, ReduceOp::sum);
  reduce(whole_flat_, ReduceOp::max);
  reduce(extreme_flat_, ReduceOp::max);
}

void BufferAverager::finish() {
  take_averages();
  keep();
}

void BufferAverager::take_averages() {
  const torch::NoGradGuard no_grad;
  renew_views();  // what is lanes' sums was not packed
  const bool sent = !works_.empty();
  for (const Work& work : works_) work.wait();
  works_.clear();
  const bool on_host = real_flat_.device().is_cpu();
  const double weight = sent && on_host ? real_flat_[-1].item<double>() : 0;
  if (weight > 0 || (sent && !on_host)) {
    // On a device the weight stays there, and where it is nothing the buffers stay as they are.
    torch::Tensor before, counts;
    if (on_host) {
      real_flat_.div_(weight);
    } else {
      gather(real_runs_, before = torch::empty_like(real_flat_));
      const torch::Tensor divisor = real_flat_.narrow(0, real_flat_.numel() - 1, 1).clone();
      counts = divisor > 0;
      real_flat_.div_(divisor);
    }
    const torch::Tensor doubles = real_flat_.narrow(0, 0, doubles_);
    const torch::Tensor largest = extreme_flat_.narrow(0, 0, doubles_);
    const torch::Tensor smallest = extreme_flat_.narrow(0, doubles_, doubles_).neg();
    doubles.copy_(torch::maximum(torch::minimum(doubles, largest), smallest));
    scatter(on_host ? real_flat_ : torch::where(counts, real_flat_, before), real_runs_);
  }
  if (sent) scatter(whole_flat_, whole_runs_);
}

void BufferAverager::abandon() noexcept {
  for (const Work& work : works_) try {
      work.wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the group keeps its failure
    }
  works_.clear();
}

}  // namespace lockstep
