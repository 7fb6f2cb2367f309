#include "grad/step_exchange.h"

#include <algorithm>
#include <atomic>

#include "grad/finite.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep {

StepExchange::StepExchange(const Group& group, GradientStore& store,
                           const std::vector<NamedTensor>& parameters, const ReducerOptions& options)
    : group_(group),
      store_(store),
      parameters_(parameters),
      options_(options),
      cards_(group),
      counts_memory_(group.allocate((parameters.size() + 2) * sizeof(std::int32_t))),
      used_(parameters.size(), 0) {}

void StepExchange::begin() {
  works_.clear();
  counts_ = Work();
  opened_ = has_left_ = false;
  missing_.clear();
  for (const BucketPlan& plan : store_.layout().buckets)
    missing_.push_back(static_cast<int>(plan.members.size()));
}

bool StepExchange::open(const StepCard& card) {
  opened_ = true;
  idle_ = !card.has_gradients();
  cards_.post(card, store_.layout().buckets.empty() ? "" : "in front of " + store_.label(0));
  const StepCard known = idle_ ? cards_.said() : card;
  if (!known.has_gradients()) {
    cards_.check();  // nobody has gradients, and everybody is here
    std::fill(used_.begin(), used_.end(), 0);
    overflowed_ = false;
    return false;
  }
  counts_memory_.as<std::int32_t>()[parameters_.size() + 1] = 0;
  if (watches_ && on_device()) {
    if (!device_found_.defined())
      device_found_ = torch::zeros({1}, torch::TensorOptions().dtype(torch::kInt32).device(store_.device()));
    device_found_.zero_();
  }
  weighted_ = known.lanes == 1.0;
  lanes_ = idle_ || weighted_;  // without gradients: as a worker whose lanes are all empty
  divisor_ = *known.divisor;
  step_.reset();
  if (weighted_ && known.step) step_ = static_cast<std::int64_t>(*known.step);
  log_ = {};  // that of the exchange before stayed until now
  log_.buckets.resize(missing_.size());
  return true;
}

void StepExchange::ready(std::size_t i) {
  const auto bucket = static_cast<std::size_t>(store_.layout().placements[i].bucket);
  if (--missing_[bucket] == 0) log_.buckets[bucket].ready_ns = now_ns();
  while (works_.size() < missing_.size() && missing_[works_.size()] == 0) launch();
}

void StepExchange::launch() {
  const int index = static_cast<int>(works_.size());
  store_.collapse(index, lanes_);
  Bucket bucket = store_.bucket(index);
  bucket.divisor = weighted_ ? divisor_ * weight_scale(bucket.data.dtype, divisor_) : divisor_;
  bucket.step = step_;
  bucket.may_be_void = watches_;
  if (cut_) bucket.sums = store_.sums(index);
  if (options_.exchange.writes_own) bucket.own = store_.own_place(index);
  BucketEvent& event = log_.buckets[static_cast<std::size_t>(index)];
  event.bucket = index;
  event.bytes = bucket.data.bytes();
  if (event.ready_ns == 0) event.ready_ns = now_ns();
  has_left_ = true;
  works_.reserve(missing_.size());
  // At once: from here on it is under way, whatever becomes of what follows.
  works_.push_back(options_.exchange.run(bucket));
  Work& work = works_.back();
  // On the thread that ends the exchange, while the bucket is in its cache. The counts leave when all have
  // been looked at, and what was found goes along with them. On a device it is found there.
  if (watches_ && on_device())
    work =
        work.then([list = store_.reduced(bucket), found = device_found_] { mark_not_finite(list, found); });
  else if (watches_)
    work = work.then([bucket, found = counts_memory_.as<std::int32_t>() + parameters_.size() + 1] {
      // Buckets may end on the threads of several groups.
      if (!std::ranges::all_of(own_tensors(bucket), all_finite))
        std::atomic_ref<std::int32_t>(*found).store(1, std::memory_order_relaxed);
    });
  work = store_.leave(bucket, work);
}

void StepExchange::flush() {
  while (works_.size() < missing_.size()) launch();
  auto* const counts = counts_memory_.as<std::int32_t>();
  const std::size_t n = parameters_.size();
  for (std::size_t i = 0; i < n; ++i) counts[i] = store_.has(i) ? 1 : 0;
  counts[n] = idle_ ? 0 : 1;
  if (!counts_wait()) send_counts();
}

void StepExchange::send_counts() {
  if (group_.size() > 1)
    counts_ = group_.all_reduce_async(Buffer{counts_memory_.data(), parameters_.size() + 2, DType::i32},
                                      {.purpose = "which parameters have gradients"});
}

void StepExchange::wait() {
  log_.wait_begin_ns = now_ns();
  cards_.check();  // before the buckets of ranks that are out of step fail for a reason that says less
  for (const Work& work : works_) work.wait();
  // The one time in a step that the host waits for a device, and only under a watch: whether the step is
  // taken is for the host to know, and for the other workers'.
  if (watches_ && on_device())
    counts_memory_.as<std::int32_t>()[parameters_.size() + 1] = device_found_.item<std::int32_t>();
  if (counts_wait()) send_counts();
  counts_.wait();
  log_.wait_end_ns = now_ns();
  for (std::size_t b = 0; b < works_.size(); ++b) {
    const WorkTiming timing = works_[b].timing();
    BucketEvent& event = log_.buckets[b];
    event.start_ns = timing.begin_ns != 0 ? timing.begin_ns : event.ready_ns;
    event.running_ns = timing.running_ns != 0 ? timing.running_ns : event.start_ns;
    event.end_ns = timing.end_ns != 0 ? timing.end_ns : event.start_ns;
    event.algorithm = timing.algorithm;
  }
  finish_counts();
}

void StepExchange::finish_counts() {
  const auto* const counts = counts_memory_.as<std::int32_t>();
  const int ranks = counts[parameters_.size()];  // that have gradients
  overflowed_ = counts[parameters_.size() + 1] > 0;
  if (overflowed_ && options_.exchange.leave_out) options_.exchange.leave_out();
  std::string unused;
  int unused_count = 0;
  const bool whole = options_.exchange.leaves == Exchange::Leaves::everything;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    used_[i] = counts[i] > 0;
    store_.publish(i, whole && counts[i] > 0);
    if (options_.find_unused_parameters || counts[i] == ranks) continue;
    if (++unused_count <= 5)
      unused += (unused.empty() ? "'" : ", '") + parameters_[i].name + "' (on " +
                std::to_string(ranks - counts[i]) + " of " + std::to_string(ranks) + " ranks" +
                (store_.has(i) ? ")" : ", this one too)");
  }
  if (unused_count > 5) unused += " and " + std::to_string(unused_count - 5) + " more";
  if (unused_count > 0)
    throw UsageError("parameters without gradient in this step: " + unused +
                     "; find_unused_parameters = true accepts that");
}

void StepExchange::abandon() noexcept {
  cards_.abandon();
  for (const Work& work : works_) try {
      work.wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the group keeps its failure
    }
  try {
    counts_.wait();
  } catch (...) {  // NOLINT(bugprone-empty-catch): likewise
  }
  works_.clear();
  counts_ = Work();
}

}  // namespace lockstep
