// A source of text whose entropy is known, so that the loss of a model that learns it has a floor.
//
// In each state one of its rules is drawn by weight: its text is written, and its state is the next. The
// texts of a state are different, and none begins with another one, so whoever has read all so far knows the
// state: the source says nothing that its text does not say.
//
//   Grammar coin({{{.weight = 1, .text = "head ", .next = 0}, {.weight = 1, .text = "tail ", .next = 0}}});
//   coin.entropy();  // ln 2 / 5 nats a character
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/random.h"

namespace lockstep {

struct Rule {
  std::int64_t weight = 1;
  std::string text;
  int next = 0;  // the state behind it
};

class Grammar {
 public:
  // The rules of each state; state 0 begins a text. Every state leads to every other one, in some number of
  // rules. Throws UsageError for texts that can't be told apart, weights below 1, and states that don't
  // exist.
  explicit Grammar(std::vector<std::vector<Rule>> states);

  // The first `length` bytes of a text. The same on every machine: drawn with whole numbers.
  std::vector<std::uint8_t> write(std::int64_t length, RandomStream random) const;

  // Nats a character, of a text of which all before is known.
  double entropy() const;

  // The least mean loss, in nats a character, of a model that sees pieces of the text: `context` characters
  // from anywhere, of which it foretells each one's successor from those before it alone. More than the
  // entropy, since at the beginning of a piece nobody knows the state.
  double loss_floor(std::int64_t context) const;

 private:
  // A place inside the texts of a state: those that begin alike share it. The first ones are the states.
  struct Edge {
    std::uint8_t byte;
    double probability;
    int to;
  };
  struct Place {
    std::vector<Edge> edges;
    double share = 0;  // of all characters, those that are written from here
  };
  // What one can know of the place: (place, probability), in the order of places.
  using Belief = std::vector<std::pair<int, double>>;

  void add_places(int state);
  void find_shares();
  double entropy_at(const Belief& belief) const;

  std::vector<std::vector<Rule>> states_;
  std::vector<Place> places_;
};

// Simple English sentences, one a line: subject, verb, sometimes an object and an adverb. The verb agrees
// with its subject.
const Grammar& sentences();

}  // namespace lockstep
