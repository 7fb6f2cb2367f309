#include "grad/step_card.h"

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kFields = 5;
using Fields = std::array<double, kFields>;

Fields fields_of(const StepCard& card) {
  return {card.lanes, card.step, card.strategy, card.resets, card.divisor};
}

StepCard card_of(const double* f) { return {f[0], f[1], f[2], f[3], f[4]}; }

std::string number(double x) {
  std::string text = std::to_string(x);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

// What tells this card from the other, in words.
std::string words(const StepCard& card, const StepCard& other) {
  if (card.strategy != other.strategy)
    return "exchanges gradients of model " + number(card.strategy) + " of this group";
  if (card.lanes != other.lanes)
    return card.lanes != 0 ? "is in lanes of step " + number(card.step) : "calls backward without a lane";
  if (card.resets != other.resets) return "has called reset() " + number(card.resets) + " times";
  if (card.step != other.step) return "is in step " + number(card.step);
  return "divides by " + number(card.divisor);
}

}  // namespace

StepCards::StepCards(Group group)
    : group_(std::move(group)), memory_(group_.allocate(2 * kFields * sizeof(double))) {}

// The largest of each field, and of its negative: where both agree nobody differs.
void StepCards::post(const std::optional<StepCard>& own) {
  own_ = own;
  if (group_.size() == 1) return;
  auto* const cells = memory_.as<double>();
  const Fields fields = own ? fields_of(*own) : Fields{};
  for (std::size_t k = 0; k < kFields; ++k) {
    cells[k] = own ? fields[k] : -std::numeric_limits<double>::infinity();
    cells[kFields + k] = own ? -fields[k] : -std::numeric_limits<double>::infinity();
  }
  work_ = group_.all_reduce_async(Buffer{cells, 2 * kFields, DType::f64}, {.op = ReduceOp::max});
}

std::optional<StepCard> StepCards::said() const {
  if (group_.size() == 1) return own_;
  work_.wait();
  const auto* const cells = memory_.as<double>();
  if (cells[0] == -std::numeric_limits<double>::infinity()) return std::nullopt;
  return card_of(cells);
}

void StepCards::check() const {
  if (group_.size() == 1 || !said()) return;
  const auto* const cells = memory_.as<double>();
  for (std::size_t k = 0; k < kFields; ++k)
    if (cells[k] != -cells[kFields + k]) explain();
}

// All ranks have seen the difference, so all come here.
void StepCards::explain() const {
  constexpr std::size_t kCells = kFields + 1;
  std::vector<double> mine(kCells);
  if (own_) {
    const Fields fields = fields_of(*own_);
    std::copy(fields.begin(), fields.end(), mine.begin());
    mine[kFields] = 1;
  }
  std::vector<double> all(kCells * static_cast<std::size_t>(group_.size()));
  group_.all_gather(buffer(std::as_const(mine)), buffer(all));
  int first = -1;
  for (int r = 0; r < group_.size(); ++r) {
    const double* const cells = &all[kCells * static_cast<std::size_t>(r)];
    if (cells[kFields] == 0) continue;
    if (first < 0) {
      first = r;
      continue;
    }
    const StepCard a = card_of(&all[kCells * static_cast<std::size_t>(first)]);
    const StepCard b = card_of(cells);
    if (fields_of(a) == fields_of(b)) continue;
    throw MismatchError("the ranks are out of step: rank " + std::to_string(first) + " " + words(a, b) +
                        ", rank " + std::to_string(r) + " " + words(b, a) +
                        "; every rank goes through the same steps, and calls reset() when one does");
  }
  throw MismatchError("the ranks are out of step");  // not reached: the maxima differed
}

void StepCards::abandon() noexcept {
  try {
    work_.wait();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the group keeps its failure
  }
  work_ = Work();
}

}  // namespace lockstep
