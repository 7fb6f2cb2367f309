#include <initializer_list>

#include "data/grammar.h"

namespace lockstep {
namespace {

struct Word {
  std::int64_t weight;
  const char* text;
};
constexpr Word kNouns[] = {{8, "dog"}, {6, "cat"}, {4, "bird"}, {3, "girl"}, {2, "king"}, {1, "horse"}};
constexpr Word kAdjectives[] = {{5, "small"}, {4, "big"}, {2, "red"}, {1, "quick"}};
constexpr Word kAlone[] = {{4, "sleep"}, {3, "run"}, {2, "sing"}, {1, "wait"}};  // verbs without an object
constexpr Word kWithObject[] = {{4, "see"}, {3, "hear"}, {2, "chase"}, {1, "find"}};  // and with one
constexpr Word kAdverbs[] = {{4, "today"}, {2, "again"}, {1, "there"}};

// How many they are: a determiner says it, or leaves it to the noun.
constexpr int kOne = 0, kMany = 1, kEither = 2;

// States: which words are next. Those that depend on the number have one for each, in the order above.
constexpr int kBegin = 0, kSubject = 1, kSubjectNoun = 4, kVerb = 7, kObject = 9, kObjectPhrase = 10,
              kObjectNoun = 13, kAdverb = 16, kStates = 17;

using Rules = std::vector<Rule>;

template <std::size_t N>
void add(Rules& rules, const Word (&words)[N], std::int64_t factor, const std::string& ending, int next) {
  for (const Word& word : words) rules.push_back({factor * word.weight, word.text + ending, next});
}

Rules determiners(int phrase) {
  return {{6, "the ", phrase + kEither},
          {4, "a ", phrase + kOne},
          {1, "every ", phrase + kOne},
          {2, "some ", phrase + kMany},
          {1, "many ", phrase + kMany}};
}

// The nouns that fit to a determiner, each with its plural where it may have one. `endings`: what follows,
// with its weight, and the state of one and of many behind it.
struct Ending {
  std::int64_t weight;
  const char* text;
  int one, many;
};
void add_nouns(Rules& rules, int number, std::int64_t factor, std::initializer_list<Ending> endings) {
  for (const auto& [weight, text, one, many] : endings) {
    if (number != kMany) add(rules, kNouns, factor * weight, text, one);
    if (number != kOne) add(rules, kNouns, factor * weight, std::string("s") + text, many);
  }
}

Rules verbs(int number) {
  const std::string agreed = number == kOne ? "s" : "";
  Rules rules;
  add(rules, kAlone, 3, agreed + ".\n", kBegin);
  add(rules, kAlone, 1, agreed + " ", kAdverb);
  add(rules, kWithObject, 5, agreed + " ", kObject);
  return rules;
}

Grammar make_sentences() {
  std::vector<Rules> states(kStates);
  const auto at = [&](int state) -> Rules& { return states[static_cast<std::size_t>(state)]; };
  at(kBegin) = determiners(kSubject);
  at(kObject) = determiners(kObjectPhrase);
  for (const int number : {kOne, kMany, kEither}) {
    const std::initializer_list<Ending> of_subject = {{4, " ", kVerb + kOne, kVerb + kMany}};
    const std::initializer_list<Ending> of_object = {{3, ".\n", kBegin, kBegin}, {1, " ", kAdverb, kAdverb}};
    // Once in three times an adjective, whoever says the number.
    const std::int64_t adjectives = number == kEither ? 16 : 8;
    add_nouns(at(kSubject + number), number, 2, of_subject);
    add(at(kSubject + number), kAdjectives, adjectives, " ", kSubjectNoun + number);
    add_nouns(at(kSubjectNoun + number), number, 1, of_subject);
    add_nouns(at(kObjectPhrase + number), number, 2, of_object);
    add(at(kObjectPhrase + number), kAdjectives, adjectives, " ", kObjectNoun + number);
    add_nouns(at(kObjectNoun + number), number, 1, of_object);
  }
  at(kVerb + kOne) = verbs(kOne);
  at(kVerb + kMany) = verbs(kMany);
  add(at(kAdverb), kAdverbs, 1, ".\n", kBegin);
  return Grammar(std::move(states));
}

}  // namespace

const Grammar& sentences() {
  static const Grammar grammar = make_sentences();
  return grammar;
}

}  // namespace lockstep
