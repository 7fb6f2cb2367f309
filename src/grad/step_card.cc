#include "grad/step_card.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kFields = 9;
constexpr double kNothing = -std::numeric_limits<double>::infinity();  // the smallest: others' values win
using Fields = std::array<double, kFields>;

Fields fields_of(const StepCard& card) {
  return {card.strategy,
          card.lanes.value_or(kNothing),
          card.step.value_or(kNothing),
          card.resets,
          card.divisor.value_or(kNothing),
          card.draw.value_or(kNothing),
          card.exchange.value_or(kNothing),
          card.by_hand.value_or(kNothing),
          card.means_given_up};
}

StepCard card_of(const double* f) {
  const auto value = [&](std::size_t k) { return f[k] == kNothing ? std::nullopt : std::optional(f[k]); };
  return {.strategy = f[0],
          .lanes = value(1),
          .step = value(2),
          .exchange = value(6),
          .draw = value(5),
          .by_hand = value(7),
          .resets = f[3],
          .means_given_up = f[8],
          .divisor = value(4)};
}

bool differ(const std::optional<double>& a, const std::optional<double>& b) { return a && b && *a != *b; }

// The fewest digits that tell it from its neighbours.
std::string number(double x) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), x).ptr};
}

// Of a rank without gradients that of lanes that are drawn alike, if at all: others have numbers of their
// own. The loop that it is in or behind, with none of them, is that of lanes that are gone through in one:
// kept ones are trained in the next step's, or behind it.
bool steps_differ(const StepCard& a, const StepCard& b) {
  const bool own = a.by_hand && b.by_hand;
  const bool of_loops = a.by_hand != 1.0 && b.by_hand != 1.0;
  const bool comparable = a.has_gradients() && b.has_gradients()
                              ? a.lanes == b.lanes
                              : a.draw == b.draw && (a.lanes == 1.0 || b.lanes == 1.0) && (own || of_loops);
  return (comparable && differ(a.step, b.step)) || differ(a.exchange, b.exchange);
}

// A rank without gradients is as one that skips its backward, whatever it gave up alone but means; and those
// only where a reset of all ranks can't have been of means here and of a backward there.
bool resets_differ(const StepCard& a, const StepCard& b) {
  if (a.has_gradients() && b.has_gradients()) return a.resets != b.resets;
  return a.means_given_up != b.means_given_up &&
         std::min(a.resets, b.resets) < std::max(a.means_given_up, b.means_given_up);
}

// Those who draw their lanes from other data may be in the same step.
bool draws_differ(const StepCard& a, const StepCard& b) {
  return a.has_gradients() && b.has_gradients() && differ(a.draw, b.draw);
}

// What every rank has to do where these differ.
std::string accepted(const StepCard& one, const StepCard& other) {
  if (one.strategy != other.strategy) return "accepted: the same models in the same order on every rank";
  if (differ(one.lanes, other.lanes)) return "accepted: lanes on every rank, or on none";
  const bool resets = resets_differ(one, other);
  if (!steps_differ(one, other))
    return resets ? "accepted: reset() on every rank when one calls it (behind an exchange one alone has "
                    "left out the update that the others made: go on from a checkpoint)"
                  : "accepted: the same total_weight on every rank";
  std::string steps = "accepted: the same steps on every rank";
  if (one.lanes == 1.0)
    steps += "; a rank that trains none of its lanes of one ends it with synchronize() and end_step()";
  if (resets) steps += "; reset() on every rank when one calls it, which brings none to another step";
  return steps;
}

std::string times(double n) { return n == 1 ? "once" : number(n) + " times"; }

// What tells this card from the other, in words; empty: nothing does.
std::string words(const StepCard& card, const StepCard& other) {
  if (card.strategy != other.strategy)
    return "exchanges gradients of model " + number(card.strategy) + " of this group";
  if (differ(card.lanes, other.lanes))
    return *card.lanes == 0 ? "calls backward without a lane"
                            : "is in lanes of step " + number(card.step.value_or(0));
  std::string text;
  if (steps_differ(card, other))
    text = card.exchange ? "is in backward " + number(*card.exchange + 1) + " of step " + number(*card.step)
                         : "is in step " + number(*card.step);
  if (resets_differ(card, other))
    text += (text.empty() ? "" : " and ") + std::string("has called reset() ") + times(card.resets);
  if (text.empty() && differ(card.divisor, other.divisor) && !draws_differ(card, other))
    return "divides by " + number(*card.divisor);
  return text;
}

}  // namespace

StepCards::StepCards(Group group)
    : group_(std::move(group)),
      memory_(group_.allocate((1 + static_cast<std::size_t>(group_.size())) * sizeof(Fields))) {}

void StepCards::post(const StepCard& own, std::string_view purpose) {
  own_ = own;
  if (group_.size() == 1) return;
  auto* const cells = memory_.as<double>();
  const Fields fields = fields_of(own);
  std::copy(fields.begin(), fields.end(), cells);
  const std::size_t all = kFields * static_cast<std::size_t>(group_.size());
  work_ = group_.all_gather_async(ConstBuffer{cells, kFields, DType::f64},
                                  Buffer{cells + kFields, all, DType::f64}, {.purpose = purpose});
}

StepCard StepCards::card_of_rank(int rank) const {
  return card_of(memory_.as<double>() + kFields * (1 + static_cast<std::size_t>(rank)));
}

StepCard StepCards::said() const {
  if (group_.size() == 1) return own_;
  work_.wait();
  // Who has gradients knows everything.
  for (int rank = 0; rank < group_.size(); ++rank)
    if (const StepCard card = card_of_rank(rank); card.has_gradients()) return card;
  return own_;
}

void StepCards::check() const {
  if (group_.size() == 1) return;
  work_.wait();
  // All against the first that has gradients: it has a say in everything.
  int a = 0;
  while (a + 1 < group_.size() && !card_of_rank(a).has_gradients()) ++a;
  if (!card_of_rank(a).has_gradients()) a = 0;
  for (int b = 0; b < group_.size(); ++b) {
    const StepCard one = card_of_rank(a);
    const StepCard other = card_of_rank(b);
    const std::string what = words(one, other);
    if (what.empty() && draws_differ(one, other))
      throw MismatchError("the ranks draw their lanes from other data: the loader of " + group_.named(b) +
                          " differs from that of " + group_.named(a) +
                          " in its seed, lanes, lane_batch, shuffle, augment, last_step, epochs, steps or "
                          "number of examples" +
                          (differ(one.divisor, other.divisor) ? "; they divide by " + number(*other.divisor) +
                                                                    " and by " + number(*one.divisor)
                                                              : "") +
                          "; accepted: the same on every rank");
    if (!what.empty())
      throw MismatchError("the ranks are out of step: " + group_.named(a) + " " + what + ", " +
                          group_.named(b) + " " + words(other, one) + "; " + accepted(one, other));
  }
}

void StepCards::abandon() noexcept {
  try {
    work_.wait();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the group keeps its failure
  }
  work_ = Work();
}

}  // namespace lockstep
