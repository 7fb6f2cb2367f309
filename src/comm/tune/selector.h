// The table of predicted costs from which a call picks its algorithm. It can be printed (`lockstep tune`),
// replaced by measurements, and overruled by CallOptions::algorithm or LOCKSTEP_ALGORITHM.
//
// Every rank of a group must hold the same table: the choice is made on each rank alone. From any thread: a
// program may ask what calls cost while its group's own thread makes some.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/algo/algorithm.h"
#include "comm/tune/costs.h"

namespace lockstep {

class Links;

struct Candidate {
  const Algorithm* algorithm = nullptr;
  double predicted_s = 0;
  bool fitted = false;    // the prediction was corrected by what such calls took
  double measured_s = 0;  // 0: not measured near this size
  double expected_s() const { return measured_s > 0 ? measured_s : predicted_s; }
};

class Selector {
 public:
  // `forced`: the algorithm to use wherever it exists (LOCKSTEP_ALGORITHM), or empty.
  // Throws UsageError when there is none of that name.
  explicit Selector(const std::string& forced = {});
  // The table, without what was chosen by it: a copy may serve another group.
  Selector(const Selector& other);
  Selector& operator=(const Selector& other);

  // Its name, or empty.
  std::string_view forced() const { return forced_ == nullptr ? std::string_view() : forced_->name(); }

  void set_costs(Costs costs);
  Costs costs() const;
  // From now on messages cost what these links do. All ranks must hold the same.
  void set_links(std::shared_ptr<const Links> links, std::shared_ptr<const Routes> routes);

  // Adds a measurement: seconds for one call of this shape. Between measured sizes it is interpolated.
  void add_measurement(const CallShape& shape, const Algorithm& algorithm, double seconds);

  // Every algorithm that could run such a call, the best first.
  std::vector<Candidate> table(const CallShape& shape, Order order) const;
  // The best of them. Remembered by shape, for one group's nodes: a step repeats its calls.
  const Algorithm* choose(const CallShape& shape, Order order) const;

  // By α, β and γ, corrected by how far off they are where the algorithm was measured: at the nearest sizes,
  // for as many ranks or, failing that, for the number nearest to it.
  double predict(const Algorithm& algorithm, const CallShape& shape) const;
  // Measured where that is known, predicted elsewhere.
  double expect(const Algorithm& algorithm, const CallShape& shape) const;

  // For people: the links of the group, and what follows from them; empty when nothing was measured.
  std::string topology() const;

  // As text and back, for the cache and for giving the table to other ranks. Throws UsageError for
  // anything that is not such a table.
  std::string to_json() const;
  void from_json(const std::string& text);

 private:
  struct Key {
    Collective what;
    int ranks;
    bool reachable;
    std::string algorithm;
    auto operator<=>(const Key&) const = default;
  };
  using Points = std::map<double, double>;  // bytes → seconds
  // Of those that follow, with the lock:
  std::vector<Candidate> candidates(const CallShape& shape, Order order) const;
  Candidate candidate(const Algorithm& algorithm, const CallShape& shape) const;
  double measured(const Algorithm& algorithm, const CallShape& shape) const;
  double by_model(const Algorithm& algorithm, const CallShape& shape) const;
  // What to multiply the model by; 0: never measured, or the model has nothing to multiply.
  double correction(const Algorithm& algorithm, const CallShape& shape) const;

  const Algorithm* forced_ = nullptr;
  mutable std::mutex mutex_;  // of what follows
  Costs costs_;
  std::shared_ptr<const Links> links_;  // null: not measured
  std::shared_ptr<const Routes> routes_;
  std::map<Key, Points> measured_;
  struct Remembered {
    CallShape shape;
    Order order;
    const Algorithm* algorithm;
  };
  mutable std::vector<Remembered> cache_;  // few shapes, looked at in order
  mutable std::vector<int> cache_nodes_;   // for which it was filled
};

// Whether such a call can be run by this algorithm at all.
bool can_run(const Algorithm& algorithm, const CallShape& shape);

// LOCKSTEP_ALGORITHM names none of ours, nor of `besides`, which an engine brings: throws UsageError.
[[noreturn]] void refuse_forced(const std::string& forced, const std::vector<std::string>& besides);

}  // namespace lockstep
