// What a Compressor remembers, as a checkpoint has it.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "compress/compressor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::compress {
namespace {

constexpr const char* kSteps = "steps";
constexpr const char* kChoice = "auto";             // by parameter
constexpr const char* kHistory = "auto_history";    // its lines of text
constexpr const char* kBegun = "begun";             // of momenta
constexpr const char* kGroups = "groups";           // subtrees, where lanes are cut into them
constexpr const char* kGathered = "most_gathered";  // Carriage::most_gathered, where a method has forms
constexpr int kAnyNumber = std::numeric_limits<int>::max();

std::int64_t number_in(const std::string& key, const torch::Tensor& tensor) {
  if (tensor.scalar_type() != torch::kInt64 || tensor.numel() != 1)
    throw UsageError(
        fmt::format("the state of the exchange has '{}' of {} × {}; accepted: one whole number, Long", key,
                    tensor.numel(), torch::toString(tensor.scalar_type())));
  return tensor.item<std::int64_t>();
}

// Takes it out of `rest`. Older states don't have it: payloads were gathered, however many.
int most_gathered_in(Exchange::State& rest) {
  const auto found = rest.find(kGathered);
  if (found == rest.end()) return kAnyNumber;
  const std::int64_t most = number_in(kGathered, found->second);
  if (most < kMostGathered || most > kAnyNumber)
    throw UsageError(fmt::format("the state of the exchange has '{}' = {}; accepted: {} or more", kGathered,
                                 most, kMostGathered));
  rest.erase(found);
  return static_cast<int>(most);
}

}  // namespace

Exchange::State Compressor::state() {
  if (!group_) throw UsageError("the state of an exchange that no model uses");
  Exchange::State state = book_.collect(*group_);
  state[kSteps] = torch::full({}, steps_, torch::kInt64);
  if (chooser_) {
    std::vector<std::int64_t> choices = past().choices;
    if (choices.empty()) choices.assign(parameters_.size(), Chooser::kUndecided);
    state[kChoice] = torch::tensor(choices, torch::kInt64);
    const std::string history = chooser_->history_text();
    if (!history.empty())
      state[kHistory] =
          torch::tensor(std::vector<std::uint8_t>(history.begin(), history.end()), torch::kUInt8);
  }
  if (options_.lanes != 0) state[kGroups] = torch::full({}, carriage_.subtrees().count, torch::kInt64);
  if (has_forms()) state[kGathered] = torch::full({}, carriage_.most_gathered(), torch::kInt64);
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
    const std::int64_t number = number_in(kGroups, groups->second);
    if (options_.lanes != 0 && number != carriage_.subtrees().count)
      throw UsageError(fmt::format(
          "the state of the exchange is of {0} subtrees, this run's has {1}; accepted: --compress-groups {0}",
          number, carriage_.subtrees().count));
    rest.erase(groups);
  }
  const int most_gathered = most_gathered_in(rest);
  const auto begun = rest.find(kBegun);
  if (momenta_ && begun == rest.end()) throw UsageError("the state of the exchange lacks 'begun', 0 or 1");
  const bool momenta_begun = momenta_ && number_in(kBegun, begun->second) != 0;
  if (momenta_) rest.erase(begun);
  if (chooser_) load_choices(rest);
  book_.take(rest, MemoryBook::Missing::is_refused);
  before_.reset();
  keep_form(most_gathered);
  steps_ = count;
  if (momenta_) momenta_->begun = momenta_begun;
}

bool Compressor::has_forms() const {
  return std::ranges::any_of(lines_,
                             [](const Line& line) { return line.method && line.method->has_forms(); });
}

// The run that is loaded goes on with its bits.
void Compressor::keep_form(int most_gathered) {
  carriage_.gather_up_to(most_gathered);
  if (has_forms() && carriage_.subtrees().count > kMostGathered && most_gathered == kAnyNumber)
    log().info(
        "--compress {}: the run was begun by a version that always gathered, and goes on so; a new one of {} "
        "subtrees would send less",
        options_.method, carriage_.subtrees().count);
}

void Compressor::keep_for(const Bucket& bucket) {
  before_.reset();
  if (bucket.may_be_void) before_ = {.book = book_.copy(), .debts = debts_};
}

void Compressor::leave_out() {
  if (!before_) return;
  book_.restore(before_->book);
  debts_ = before_->debts;
}

// Takes its own of `rest`.
void Compressor::load_choices(Exchange::State& rest) {
  const auto found = rest.find(kChoice);
  if (found == rest.end()) return;
  if (found->second.scalar_type() != torch::kInt64)
    throw UsageError(fmt::format("the state of the exchange has 'auto' of {}; accepted: whole numbers, Long",
                                 torch::toString(found->second.scalar_type())));
  const torch::Tensor choice = found->second.reshape({-1});
  if (found->second.dim() != 0 && choice.numel() != std::ssize(parameters_))
    throw UsageError(fmt::format("the state of the exchange has 'auto' of {} parameters; accepted: {}",
                                 choice.numel(), parameters_.size()));
  std::vector<std::int64_t> choices;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto index =
        choice[found->second.dim() == 0 ? 0 : static_cast<std::int64_t>(p)].item<std::int64_t>();
    if (index < Chooser::kUndecided || index >= std::ssize(Chooser::candidates()))
      throw UsageError(fmt::format("the state of the exchange has 'auto' = {}, which is no method", index));
    if (index != Chooser::kUndecided) choices.push_back(index);
  }
  if (choices.size() != parameters_.size()) choices.clear();
  std::string history;
  if (const auto text = rest.find(kHistory); text != rest.end()) {
    const torch::Tensor bytes = text->second.to(torch::kUInt8).contiguous();
    history.assign(reinterpret_cast<const char*>(bytes.data_ptr<std::uint8_t>()),
                   static_cast<std::size_t>(bytes.numel()));
    rest.erase(text);
  }
  rest.erase(kChoice);
  chooser_->load(choices, history);
  assign(parameters_);
  book_ = MemoryBook(carriage_.subtrees(), carriage_.own());
  debts_.clear();
  bind_methods();
}

}  // namespace lockstep::compress
