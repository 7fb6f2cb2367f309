// star: rank 0 takes everybody's input, sums, and gives everybody the result. An algorithm from outside the
// library, to show that one file, with one line at its end, is all that it takes.
//
//   all_reduce  2(n-1) messages at rank 0, (n-1) · S bytes in and as many out
//
// Order of summation: canonical.
#include "comm/star_algorithm.h"

#include "comm/algo/algorithm.h"
#include "comm/algo/team.h"

namespace lockstep::testing {

std::atomic<int> star_runs = 0;

namespace {

class Star final : public Algorithm {
 public:
  Star(std::string_view name, Needs needs) : name_(name), needs_(needs) {}

  std::string_view name() const override { return name_; }
  bool canonical(std::span<const int>) const override { return true; }
  bool has(Collective what) const override { return what == Collective::all_reduce; }
  Needs needs() const override { return needs_; }
  Cost cost(const CallShape& shape) const override {
    const double others = shape.ranks - 1;
    const auto s = static_cast<double>(shape.bytes);
    return {.messages = 2 * others, .sent_bytes = 2 * others * s, .reduced_bytes = (others + 2) * s};
  }
  void run(Stage& stage) const override {
    ++star_runs;
    if (stage.call.count == 0) return;
    const std::size_t bytes = stage.call.bytes();
    const kernel::Reduction reduction = stage.reduction();
    Team team = Team::whole(stage.channel());
    if (team.me() != 0) {
      team.send(0, {stage.in(), bytes}, reduction);
      return team.recv(0, {stage.out(), bytes}, Arrival::store, reduction);
    }
    std::byte* const room = stage.scratch.take(bytes * static_cast<std::size_t>(team.size()));
    std::vector<const void*> ins = {stage.in()};
    for (int r = 1; r < team.size(); ++r) {
      std::byte* const theirs = room + bytes * static_cast<std::size_t>(r);
      team.recv(r, {theirs, bytes}, Arrival::store, reduction);
      ins.push_back(theirs);
    }
    void* const out = stage.out();
    kernel::reduce_tree({&out, 1}, ins, stage.call.count, reduction);
    for (int r = 1; r < team.size(); ++r) team.send(r, {stage.out(), bytes}, reduction);
  }

 private:
  std::string_view name_;
  Needs needs_;
};

// The second says that it needs memory which all ranks reach: those are timed before any job (run_trials).
const Star kStar("star", {});
const Star kSharedStar("shared-star", {.reach = true});
const bool kAdded = add_algorithm(kStar) && add_algorithm(kSharedStar);

}  // namespace
}  // namespace lockstep::testing
