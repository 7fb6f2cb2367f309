// --compress auto: which method, or none, for which bucket on these links.
//
// The first steps travel as they are. In a few of them every candidate compresses a tensor of each bucket for
// itself: how long that takes, and how far off it is. Then all ranks tell each other what they found, and in
// the step behind that decide alike, for each bucket by
//
//   expected time of its calls (the group's cost table, see link_watch.h) + time of encoding and decoding
//
// among those whose relative error is small enough, the dense exchange included. So again from time to time:
// kFirstInterval steps behind a choice that changed something, then twice as many, up to `every`. What has
// been chosen stays unless something else is expected to be kWorthwhile of it, or it is off too far.
//
// A choice is made for a bucket, since calls are what costs, and several methods in one bucket are several
// calls. It is kept by parameter, as what is remembered is: buckets are laid out anew. In shared memory
// nothing is ever compressed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compress/link_watch.h"
#include "compress/trial.h"
#include "lockstep/grad/exchange.h"

namespace lockstep::compress {

struct ChooserOptions {
  double max_error = 0.05;
  std::int64_t every = 500;  // steps; 0: once
  LinkView links = real_links();
};

// A bucket as it was seen last.
struct BucketView {
  std::string label;
  std::vector<std::size_t> parameters = {};
  std::size_t count = 0;
  DType dtype = DType::f32;
  std::optional<double> table_s = {};  // of its calls as they are now, once it was asked for
};

// What a bucket's exchange costs by one way of it.
struct WayCost {
  double table_s = 0;         // of its calls; 0: nobody knows
  double coded_elements = 0;  // that this worker encodes and decodes, with those that it only decodes
};

// Knows what ways cost; nothing where the way makes nothing of the bucket smaller.
class WayCosts {
 public:
  virtual ~WayCosts() = default;
  virtual std::optional<WayCost> cost(const BucketView& bucket, int way) const = 0;
};

class Chooser {
 public:
  static constexpr int kUndecided = -2, kDense = -1;
  static constexpr int kProbes = 3;  // steps that are looked at, behind the first
  static constexpr std::int64_t kFirstInterval = 50, kLeastInterval = 10;
  static constexpr double kWorthwhile = 0.9;
  static constexpr std::size_t kLeastElements = 1024;  // smaller tensors travel as they are
  static const std::vector<std::string>& candidates();

  explicit Chooser(const ChooserOptions& options);

  // Before the first bucket. `alone`: this worker by itself; `choices`: what all have agreed to go on with,
  // by parameter, empty where that is not decided.
  void bind(const Group& group, const Group& alone, const std::vector<NamedTensor>& parameters,
            const std::vector<std::int64_t>& choices, const std::string& history);
  // From a checkpoint.
  void load(const std::vector<std::int64_t>& choices, const std::string& history);

  // By parameter, an index of a candidate or kDense; empty: not decided. And whether there is nothing to
  // choose, and nothing left of a place where there was.
  const std::vector<std::int64_t>& choices() const { return choices_; }
  bool is_given() const { return given_.has_value() && !leaves_; }
  std::string about() const;
  const std::vector<std::string>& history() const { return history_; }
  std::string history_text() const;  // a line each

  // In front of a bucket's exchange, on every rank; nobody waits. True, in front of a step's first: choices
  // are others from now on.
  bool look(const Bucket& bucket, std::int64_t step, const WayCosts& costs);
  // Behind it.
  void sent(const Bucket& bucket, const Work& work, const WayCosts& costs);

 private:
  struct Ways;  // of one bucket, as all ranks found them

  std::int64_t first_probe() const;
  std::int64_t asking() const { return first_probe() + kProbes; }
  void see(const Bucket& bucket);
  void probe(const Bucket& bucket);
  void ask(const WayCosts& costs);
  bool decide(std::int64_t step);
  std::vector<Ways> gathered_ways() const;
  bool rescale(std::int64_t step, const std::vector<Ways>& ways);  // is it another now?
  // kUndecided: nothing so far, or several.
  int chosen_of(const BucketView& bucket) const;
  int best_of(const Ways& ways, int before) const;
  void tell_changes(std::int64_t step, const std::vector<Ways>& list, const std::vector<int>& best);
  void tell(std::string line);
  std::string name_of(int way) const;

  ChooserOptions options_;
  Group group_, alone_;
  std::vector<NamedTensor> parameters_;
  std::vector<std::int64_t> choices_;
  std::optional<std::string> given_;  // why there is nothing to choose
  std::string reason_;
  std::vector<std::string> history_;
  bool leaves_ = false;  // what was chosen elsewhere, where there is nothing to choose

  std::int64_t age_ = 0;  // steps since the last choice
  std::int64_t interval_ = kFirstInterval;
  int layout_ = -1;
  std::vector<BucketView> buckets_;
  std::vector<std::vector<Found>> found_;  // by bucket and candidate
  LinkWatch watch_;
  double scale_ = 1;  // of the table's costs
  std::shared_ptr<std::vector<double>> told_, all_told_;
  Work asked_;
};

}  // namespace lockstep::compress
