#include "compress/chooser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/kernel/reduce.h"
#include "compress/arithmetic.h"
#include "lockstep/base/log.h"

namespace lockstep::compress {

const std::vector<std::string>& Chooser::candidates() {
  static const std::vector<std::string> texts = {"fp8", "int8", "onebit", "powersgd:rank=4", "topk:0.01"};
  return texts;
}

Chooser::Chooser(const ChooserOptions& options) : options_(options), watch_(options.links) {}

void Chooser::bind(const Group& group, const Group& alone, const std::vector<NamedTensor>& parameters,
                   const std::vector<std::int64_t>& choices, const std::string& history) {
  group_ = group;
  alone_ = alone;
  parameters_ = parameters;
  // On every rank alike: one may have joined, and what was found is of other workers.
  interval_ = options_.every == 0 ? 0 : std::min(kFirstInterval, options_.every);
  buckets_.clear();
  found_.clear();
  layout_ = -1;
  scale_ = 1;
  given_.reset();
  if (group.size() == 1) given_ = "one worker sends nothing";
  if (group.size() > 1 && group.shares_memory()) given_ = "the workers share their memory";
  if (given_) reason_ = *given_;
  if (!given_ && choices_ != choices) reason_ = "as the others do";
  choices_ = choices;
  load(choices, history);
}

// Where there is nothing to choose what was chosen elsewhere, by a checkpoint's run or by other workers, is
// left in the next step, which pays what it owes.
void Chooser::load(const std::vector<std::int64_t>& choices, const std::string& history) {
  const auto is_dense = [](std::int64_t choice) { return choice == kDense; };
  leaves_ = given_ && !std::ranges::all_of(choices, is_dense);
  if (!given_ && !choices.empty() && choices != choices_) reason_ = "as the run did before";
  choices_ = given_ && choices.empty() ? std::vector<std::int64_t>(parameters_.size(), kDense) : choices;
  age_ = 0;
  watch_.restart();
  history_.clear();
  for (std::size_t begin = 0, end = 0; begin < history.size(); begin = end + 1) {
    end = std::min(history.find('\n', begin), history.size());
    history_.push_back(history.substr(begin, end - begin));
  }
}

std::string Chooser::history_text() const {
  std::string text;
  for (const std::string& line : history_) text += line + "\n";
  return text;
}

std::string Chooser::name_of(int way) const {
  return way < 0 ? "none" : candidates()[static_cast<std::size_t>(way)];
}

std::string Chooser::about() const {
  if (choices_.empty()) return "auto, not decided yet";
  std::vector<double> elements(candidates().size() + 1);
  double all = 0;
  for (std::size_t p = 0; p < choices_.size(); ++p) {
    const auto count = static_cast<double>(parameters_[p].tensor.numel());
    elements[static_cast<std::size_t>(choices_[p] + 1)] += count;
    all += count;
  }
  std::string names;
  for (std::size_t i = elements.size(); i-- > 0;) {
    if (elements[i] == 0) continue;
    if (!names.empty()) names += ", ";
    names += name_of(static_cast<int>(i) - 1);
    if (elements[i] < all) names += fmt::format(" ({:.3g} %)", 100 * elements[i] / all);
  }
  return fmt::format("auto: {}; {}", names.empty() ? "none" : names, reason_);
}

void Chooser::tell(std::string line) {
  constexpr std::size_t kMostLines = 200;
  log().info("--compress auto: {}", line);
  if (history_.size() == kMostLines) history_.erase(history_.begin());
  history_.push_back(std::move(line));
}

// The first step has other buckets than those behind it, and takes longer.
std::int64_t Chooser::first_probe() const { return choices_.empty() ? 2 : interval_ - kProbes - 1; }

// In front of a step's first bucket, on every rank, but not at the same time: it is full early on one, and
// leaves at the end of backward on another, which may wait there for the first (SyncBatchNorm). So nobody
// waits for what the others have not begun: all ask in one step, and know in the next.
bool Chooser::look(const Bucket& bucket, std::int64_t step, const WayCosts& costs) {
  if (given_) {
    if (!leaves_ || bucket.index != 0) return false;
    choices_.assign(parameters_.size(), kDense);
    reason_ = *given_;
    leaves_ = false;
    tell(fmt::format("step {}: none; {}", step, *given_));
    return true;
  }
  if (!choices_.empty() && options_.every == 0) return false;
  bool changes = false;
  if (bucket.index == 0) {
    ++age_;
    watch_.begin_step(asking() - age_);
    if (age_ == asking()) ask(costs);
    if (age_ > asking()) changes = decide(step);
  }
  see(bucket);
  if (age_ >= first_probe() && age_ < asking()) probe(bucket);
  return changes;
}

void Chooser::see(const Bucket& bucket) {
  if (bucket.layout != layout_) {
    buckets_.clear();
    found_.clear();
    layout_ = bucket.layout;
  }
  const auto index = static_cast<std::size_t>(bucket.index);
  if (index < buckets_.size()) return;
  buckets_.resize(index + 1);
  found_.resize(index + 1, std::vector<Found>(candidates().size()));
  BucketView& own = buckets_[index];
  own = {.label = std::string(bucket.purpose), .count = bucket.data.count, .dtype = bucket.data.dtype};
  for (const BucketTensor& tensor : bucket.tensors) own.parameters.push_back(tensor.parameter);
}

void Chooser::probe(const Bucket& bucket) {
  if (bucket.data.dtype == DType::f64 || bucket.sums.empty()) return;
  const SubtreeSum& sum = bucket.sums[0];
  std::optional<std::size_t> largest;
  for (std::size_t t = 0; t < bucket.tensors.size(); ++t) {
    const std::size_t count = bucket.tensors[t].count;
    if (sum.has[t] == 0 || count < kLeastElements) continue;
    if (!largest || count > bucket.tensors[*largest].count) largest = t;
  }
  if (!largest) return;
  const BucketTensor& tensor = bucket.tensors[*largest];
  std::vector<float> values(tensor.count);
  const auto* const from =
      static_cast<const std::byte*>(sum.data) + tensor.offset * size_of(bucket.data.dtype);
  if (bucket.data.dtype == DType::f32)
    std::memcpy(values.data(), from, values.size() * sizeof(float));
  else
    kernel::widen(values.data(), from, values.size(), bucket.data.dtype);
  if (!all_finite(values)) return;
  const std::vector<std::int64_t> sizes = parameters_[tensor.parameter].tensor.sizes().vec();
  for (std::size_t c = 0; c < candidates().size(); ++c)
    found_[static_cast<std::size_t>(bucket.index)][c].again(
        try_method(candidates()[c], alone_, sizes, values));
}

int Chooser::chosen_of(const BucketView& bucket) const {
  if (choices_.empty()) return kUndecided;
  std::optional<int> chosen;
  for (const std::size_t p : bucket.parameters) {
    if (static_cast<std::size_t>(parameters_[p].tensor.numel()) < kLeastElements) continue;
    const auto own = static_cast<int>(choices_[p]);
    if (chosen && own != *chosen) return kUndecided;  // they were in other buckets
    chosen = own;
  }
  return chosen.value_or(kDense);
}

void Chooser::sent(const Bucket& bucket, const Work& work, const WayCosts& costs) {
  if (given_ || (!choices_.empty() && options_.every == 0)) return;
  BucketView& view = buckets_[static_cast<std::size_t>(bucket.index)];
  if (!view.table_s) {
    const std::optional<WayCost> cost = costs.cost(view, std::max<int>(chosen_of(view), kDense));
    view.table_s = cost ? cost->table_s : 0;
  }
  watch_.add(work, *view.table_s);
}

}  // namespace lockstep::compress
