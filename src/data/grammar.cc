#include "data/grammar.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kNegligible = 1e-13;  // a part of the whole that changes no digit that is printed

std::int64_t weight_of(const std::vector<Rule>& rules) {
  std::int64_t sum = 0;
  for (const Rule& rule : rules) sum += rule.weight;
  return sum;
}

void check(const std::vector<std::vector<Rule>>& states) {
  const auto bad = [](std::size_t state, const std::string& what) {
    return UsageError("grammar: state " + std::to_string(state) + " " + what);
  };
  for (std::size_t s = 0; s < states.size(); ++s) {
    if (states[s].empty()) throw bad(s, "has no rule; accepted: one or more");
    for (std::size_t i = 0; i < states[s].size(); ++i) {
      const Rule& rule = states[s][i];
      if (rule.weight < 1 || rule.text.empty() || rule.next < 0 || rule.next >= std::ssize(states))
        throw bad(s, "has a rule with weight " + std::to_string(rule.weight) + ", text '" + rule.text +
                         "', next " + std::to_string(rule.next) +
                         "; accepted: 1 or more, some text, a state that there is");
      for (std::size_t k = 0; k < states[s].size(); ++k)
        if (k != i && states[s][k].text.starts_with(rule.text))
          throw bad(s, "has '" + rule.text + "' and '" + states[s][k].text +
                           "'; accepted: texts of which none begins with another one");
    }
  }
}

}  // namespace

Grammar::Grammar(std::vector<std::vector<Rule>> states) : states_(std::move(states)) {
  if (states_.empty()) throw UsageError("grammar: no state; accepted: one or more");
  check(states_);
  places_.resize(states_.size());
  for (int s = 0; s < std::ssize(states_); ++s) add_places(s);
  find_shares();
}

void Grammar::add_places(int state) {
  const std::vector<Rule>& rules = states_[static_cast<std::size_t>(state)];
  std::map<int, double> weights = {
      {state, static_cast<double>(weight_of(rules))}};  // of what goes through a place
  for (const Rule& rule : rules) {
    int at = state;
    for (std::size_t i = 0; i < rule.text.size(); ++i) {
      const auto byte = static_cast<std::uint8_t>(rule.text[i]);
      auto& edges = places_[static_cast<std::size_t>(at)].edges;
      auto edge = std::ranges::find(edges, byte, &Edge::byte);
      if (edge == edges.end()) {
        const bool last = i + 1 == rule.text.size();
        edge = edges.insert(edge, {byte, 0, last ? rule.next : static_cast<int>(places_.size())});
      }
      edge->probability += static_cast<double>(rule.weight);
      const int to = edge->to;
      if (to == std::ssize(places_)) places_.emplace_back();
      if (i + 1 < rule.text.size()) weights[to] += static_cast<double>(rule.weight);
      at = to;
    }
  }
  for (const auto& [place, weight] : weights)
    for (Edge& edge : places_[static_cast<std::size_t>(place)].edges) edge.probability /= weight;
}

void Grammar::find_shares() {
  // How often each state comes, by going on from any shares until they stay. Half of them wait each time, so
  // that they settle also where the states take turns.
  std::vector<double> often(states_.size(), 1.0 / static_cast<double>(states_.size()));
  for (double change = 1; change > kNegligible / 100;) {
    std::vector<double> then(often.size());
    for (std::size_t s = 0; s < often.size(); ++s) {
      then[s] += often[s] / 2;
      const auto all = static_cast<double>(weight_of(states_[s]));
      for (const Rule& rule : states_[s])
        then[static_cast<std::size_t>(rule.next)] += often[s] / 2 * static_cast<double>(rule.weight) / all;
    }
    change = 0;
    for (std::size_t s = 0; s < often.size(); ++s) change = std::max(change, std::abs(then[s] - often[s]));
    often = std::move(then);
  }
  for (std::size_t s = 0; s < often.size(); ++s) places_[s].share = often[s];
  // Places inside a state come behind the one that leads to them.
  double all = 0;
  std::vector<int> open;
  for (int s = 0; s < std::ssize(states_); ++s) open.push_back(s);
  for (std::size_t i = 0; i < open.size(); ++i) {
    const Place& place = places_[static_cast<std::size_t>(open[i])];
    all += place.share;
    for (const Edge& edge : place.edges) {
      if (edge.to < std::ssize(states_)) continue;
      places_[static_cast<std::size_t>(edge.to)].share = place.share * edge.probability;
      open.push_back(edge.to);
    }
  }
  for (Place& place : places_) place.share /= all;
}

std::vector<std::uint8_t> Grammar::write(std::int64_t length, RandomStream random) const {
  std::vector<std::uint8_t> text;
  text.reserve(static_cast<std::size_t>(length));
  for (int state = 0; std::ssize(text) < length;) {
    const std::vector<Rule>& rules = states_[static_cast<std::size_t>(state)];
    auto drawn = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(weight_of(rules))));
    auto rule = rules.begin();
    for (; drawn >= rule->weight; ++rule) drawn -= rule->weight;
    text.insert(text.end(), rule->text.begin(), rule->text.end());
    state = rule->next;
  }
  text.resize(static_cast<std::size_t>(length));
  return text;
}

double Grammar::entropy() const {
  double sum = 0;
  for (int place = 0; place < std::ssize(places_); ++place)
    sum += places_[static_cast<std::size_t>(place)].share * entropy_at({{place, 1.0}});
  return sum;
}

// Of the next character.
double Grammar::entropy_at(const Belief& belief) const {
  std::array<double, 256> probability{};
  for (const auto& [place, share] : belief)
    for (const Edge& edge : places_[static_cast<std::size_t>(place)].edges)
      probability[edge.byte] += share * edge.probability;
  double sum = 0;
  for (const double p : probability)
    if (p > 0) sum -= p * std::log(p);
  return sum;
}

// Follows all that can be known after 1, 2, … characters, with how likely it is. There are few such beliefs:
// most texts soon leave one place only, and the others come to the same doubts in many ways.
double Grammar::loss_floor(std::int64_t context) const {
  using Key = std::vector<std::pair<int, std::int64_t>>;
  const auto key_of = [](const Belief& belief) {
    Key key;
    for (const auto& [place, share] : belief) key.emplace_back(place, std::llround(share * 0x1p40));
    return key;
  };
  struct Known {
    Belief belief;
    double probability = 0;
  };
  std::map<Key, Known> known;
  Belief nothing;
  for (int place = 0; place < std::ssize(places_); ++place)
    nothing.emplace_back(place, places_[static_cast<std::size_t>(place)].share);
  known[{}] = {std::move(nothing), 1};

  const double settled = entropy();
  double sum = 0;
  for (std::int64_t seen = 0; seen <= context; ++seen) {
    double doubtful = 0, here = 0;
    std::map<Key, Known> next;
    for (const auto& [key, now] : known) {
      here += now.probability * entropy_at(now.belief);
      if (now.belief.size() > 1) doubtful += now.probability;
      std::map<std::uint8_t, std::map<int, double>> after;
      for (const auto& [place, share] : now.belief)
        for (const Edge& edge : places_[static_cast<std::size_t>(place)].edges)
          after[edge.byte][edge.to] += share * edge.probability;
      for (const auto& [byte, places] : after) {
        double all = 0;
        for (const auto& [place, share] : places) all += share;
        Belief belief;
        for (const auto& [place, share] : places) belief.emplace_back(place, share / all);
        Key reached = key_of(belief);
        Known& then = next[std::move(reached)];
        then.belief = std::move(belief);
        then.probability += now.probability * all;
      }
    }
    if (doubtful < kNegligible) {
      sum += settled * static_cast<double>(context + 1 - std::max<std::int64_t>(seen, 1));
      break;
    }
    if (seen > 0) sum += here;  // the first character is given
    known = std::move(next);
  }
  return sum / static_cast<double>(context);
}

}  // namespace lockstep
