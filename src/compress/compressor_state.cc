// What a Compressor remembers, as a checkpoint has it.
#include <fmt/format.h>


#include "compress/compressor.h"
#include "lockstep/base/error.h"

namespace lockstep::compress {
namespace {

constexpr const char* kSteps = "steps";
constexpr const char* kChoice = "auto";
constexpr const char* kBegun = "begun";    // of momenta
constexpr const char* kGroups = "groups";  // subtrees, where lanes are cut into them

}  // namespace

Exchange::State Compressor::state() {
  if (!group_) throw UsageError("the state of an exchange that no model uses");
  Exchange::State state = book_.collect(*group_);
  state[kSteps] = torch::full({}, steps_, torch::kInt64);
  if (chooser_) state[kChoice] = torch::full({}, chooser_->choice(), torch::kInt64);
  if (options_.lanes != 0) state[kGroups] = torch::full({}, carriage_.subtrees().count, torch::kInt64);
  if (momenta_) state[kBegun] = torch::full({}, momenta_->begun ? 1 : 0, torch::kInt64);
  return state;
}

void Compressor::load(const Exchange::State& state) {
  if (!group_)
    throw UsageError("a state for an exchange that no model uses yet; accepted: once it is wrapped");
  Exchange::State rest = state;
  const auto steps = rest.find(kSteps);
  if (steps == rest.end() || steps->second.scalar_type() != torch::kInt64 || steps->second.numel() != 1)
    throw UsageError("the state of the exchange lacks 'steps', a number");
  const auto count = steps->second.item<std::int64_t>();
  rest.erase(steps);
  if (const auto groups = rest.find(kGroups); groups != rest.end()) {  // not in older ones
    const auto number = groups->second.item<std::int64_t>();
    if (options_.lanes != 0 && number != carriage_.subtrees().count)
      throw UsageError(fmt::format(
          "the state of the exchange is of {0} subtrees, this run's has {1}; accepted: --compress-groups {0}",
          number, carriage_.subtrees().count));
    rest.erase(groups);
  }
  const auto begun = rest.find(kBegun);
  if (momenta_ && (begun == rest.end() || begun->second.numel() != 1))
    throw UsageError("the state of the exchange lacks 'begun', 0 or 1");
  const bool momenta_begun = momenta_ && begun->second.item<std::int64_t>() != 0;
  if (momenta_) rest.erase(begun);
  if (const auto choice = rest.find(kChoice); chooser_ && choice != rest.end()) {
    const auto index = choice->second.item<std::int64_t>();
    if (index < Chooser::kUndecided || index >= std::ssize(Chooser::candidates()))
      throw UsageError(fmt::format("the state of the exchange has 'auto' = {}, which is no method", index));
    rest.erase(choice);
    if (index != Chooser::kUndecided) chooser_->choose(static_cast<int>(index), "as the run did before");
    use_choice();
    assign(parameters_);
    bind_methods();
  }
  book_.take(rest, MemoryBook::Missing::is_refused);
  steps_ = count;
  if (momenta_) momenta_->begun = momenta_begun;
}

}  // namespace lockstep::compress
