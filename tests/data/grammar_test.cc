// The text that is made, and the floor under the loss of whoever learns it.
#include "data/grammar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "comm/expect_error.h"
#include "lockstep/data/open_dataset.h"

namespace lockstep {
namespace {

using testing::expect_error;

std::string sample(const Grammar& grammar, std::int64_t length, std::uint64_t seed = 0) {
  const auto bytes = grammar.write(length, RandomStream(seed));
  return {bytes.begin(), bytes.end()};
}

// Of a table of counts or probabilities.
template <class Key>
double entropy_of(const std::map<Key, double>& table) {
  double all = 0, sum = 0;
  for (const auto& [key, count] : table) all += count;
  for (const auto& [key, count] : table) sum -= count / all * std::log(count / all);
  return sum;
}

TEST(Grammar, HasTheEntropyThatOneComputesByHand) {
  const Grammar coin({{{1, "head ", 0}, {1, "tail ", 0}}});
  EXPECT_NEAR(coin.entropy(), std::log(2) / 5, 1e-12);
  const Grammar uneven({{{1, "a ", 0}, {3, "bbb ", 0}}});
  EXPECT_NEAR(uneven.entropy(), (std::log(4) / 4 + 3 * std::log(4.0 / 3) / 4) / (2.0 / 4 + 4 * 3.0 / 4),
              1e-12);
  const Grammar turns({{{1, "tick ", 1}}, {{1, "tock ", 0}}});
  EXPECT_NEAR(turns.entropy(), 0, 1e-12);
}

// Of the beginning of a piece one can't tell which of the two states it is from.
const std::vector<std::vector<Rule>> kTwo = {{{1, "a ", 0}, {2, "ab ", 1}}, {{3, "ba ", 0}, {1, "b ", 1}}};

// All pieces of `length` characters with their probability, by writing out every text.
std::map<std::string, double> pieces(std::size_t length) {
  const double often[] = {9.0 / 17, 8.0 / 17};  // π1 = π0 · 2/3 + π1 / 4
  std::map<std::string, double> found;
  double all = 0;
  const auto write_on = [&](const auto& self, const std::string& text, int state,
                            double probability) -> void {
    if (text.size() >= length) {
      found[text.substr(0, length)] += probability;
      return;
    }
    const double weights = state == 0 ? 3 : 4;
    for (const Rule& rule : kTwo[static_cast<std::size_t>(state)])
      self(self, text + rule.text, rule.next, probability * static_cast<double>(rule.weight) / weights);
  };
  for (int state = 0; state < 2; ++state)
    for (const Rule& rule : kTwo[static_cast<std::size_t>(state)])
      for (std::size_t from = 0; from < rule.text.size(); ++from) {
        const double probability = often[state] * static_cast<double>(rule.weight) / (state == 0 ? 3 : 4);
        all += probability;
        write_on(write_on, rule.text.substr(from), rule.next, probability);
      }
  for (auto& [text, probability] : found) probability /= all;
  return found;
}

// The sum over a piece of what each character tells, given those before it, is what the piece tells.
TEST(Grammar, HasTheFloorThatAllPiecesGive) {
  const Grammar grammar(kTwo);
  const double first = entropy_of(pieces(1));
  double before = 10;
  for (const std::size_t context : {1, 2, 3, 5, 8, 12}) {
    const double floor = (entropy_of(pieces(context + 1)) - first) / static_cast<double>(context);
    EXPECT_NEAR(grammar.loss_floor(static_cast<std::int64_t>(context)), floor, 1e-10) << context;
    EXPECT_LT(floor, before);
    before = floor;
  }
  EXPECT_GT(before, grammar.entropy());
  EXPECT_NEAR(grammar.loss_floor(1 << 20), grammar.entropy(), 1e-5);
}

// What may follow depends on the kinds of the words before it in the sentence, and on nothing else.
std::string kind_of(const std::string& word) {
  static const std::map<std::string, std::string> determiners = {
      {"the", "either"}, {"a", "one"}, {"every", "one"}, {"some", "many"}, {"many", "many"}};
  static const std::set<std::string> adjectives = {"small", "big", "red", "quick"};
  static const std::set<std::string> nouns = {"dog", "cat", "bird", "girl", "king", "horse"};
  static const std::set<std::string> with_object = {"see", "hear", "chase", "find"};
  if (const auto found = determiners.find(word); found != determiners.end()) return found->second;
  const std::string stem = word.ends_with('s') ? word.substr(0, word.size() - 1) : word;
  if (adjectives.contains(word)) return "adjective";
  if (nouns.contains(stem)) return stem == word ? "noun" : "nouns";
  return with_object.contains(stem) ? "verb with object" : "verb";
}

// The words of a long text, counted without knowing how it is made.
TEST(Grammar, SentencesHaveTheEntropyThatTheirWordsHave) {
  const std::string text = sample(sentences(), 4'000'000, 7);
  std::map<std::string, std::map<std::string, double>> follow;
  std::map<std::string, double> visits;
  double words = 0, characters = 0;
  std::string sentence, word;
  for (const char c : text) {
    word += c;
    if (c != ' ' && c != '\n') continue;
    follow[sentence][word] += 1;
    visits[sentence] += 1;
    words += 1;
    characters += static_cast<double>(word.size());
    sentence = c == '\n' ? "" : sentence + kind_of(word.substr(0, word.size() - 1)) + " ";
    word.clear();
  }
  double per_word = 0;
  for (const auto& [before, words_after] : follow)
    per_word += visits[before] / words * entropy_of(words_after);
  EXPECT_NEAR(sentences().entropy(), per_word * words / characters, 2e-3);
  EXPECT_LT(follow.size(), 200U);  // else counting would not do
}

TEST(Grammar, SentencesHaveTheFloorThatTheirPiecesHave) {
  const std::string text = sample(sentences(), 4'000'000, 8);
  for (const std::size_t context : {1, 2, 3}) {
    std::map<std::string, double> first, whole;
    for (std::size_t i = 0; i + context < text.size(); ++i) {
      first[text.substr(i, 1)] += 1;
      whole[text.substr(i, context + 1)] += 1;
    }
    EXPECT_NEAR(sentences().loss_floor(static_cast<std::int64_t>(context)),
                (entropy_of(whole) - entropy_of(first)) / static_cast<double>(context), 5e-3)
        << context;
  }
  const double entropy = sentences().entropy();
  EXPECT_GT(sentences().loss_floor(64), sentences().loss_floor(128));
  EXPECT_GT(sentences().loss_floor(128), entropy);
  EXPECT_LT(sentences().loss_floor(128), 1.1 * entropy);  // a short context is enough
}

// A run that is resumed expects the same text, on any machine.
TEST(Grammar, WritesTheSameTextAgain) {
  const std::string text = sample(sentences(), 200);
  EXPECT_EQ(text, sample(sentences(), 300).substr(0, 200));
  EXPECT_NE(text, sample(sentences(), 200, 1));
  EXPECT_EQ(text.substr(0, text.find('\n', text.find('\n') + 1)), "some birds sleep.\nmany dogs wait.");
}

TEST(Grammar, RefusesWhatCannotBeToldApart) {
  expect_error<UsageError>([] { Grammar(std::vector<std::vector<Rule>>()); }, {"no state"});
  expect_error<UsageError>([] { Grammar(std::vector<std::vector<Rule>>(1)); }, {"state 0 has no rule"});
  expect_error<UsageError>(
      [] {
        Grammar({{{1, "dog", 0}, {1, "dogs", 0}}});
      },
      {"'dog' and 'dogs'", "none begins"});
  expect_error<UsageError>([] { Grammar({{{1, "dog", 0}, {1, "dog", 0}}}); }, {"'dog' and 'dog'"});
  expect_error<UsageError>([] { Grammar({{{0, "dog", 0}}}); }, {"weight 0"});
  expect_error<UsageError>([] { Grammar({{{1, "", 0}}}); }, {"text ''"});
  expect_error<UsageError>([] { Grammar({{{1, "dog", 1}}}); }, {"next 1"});
}

TEST(OpenDataset, MakesTextWithoutAFile) {
  const auto train = open_dataset({.name = "text", .context = 32, .train_size = 50});
  const auto test = open_dataset({.name = "text", .split = Split::test, .context = 32, .test_size = 20});
  EXPECT_EQ(train->size(), 50);
  EXPECT_EQ(test->size(), 20);
  ASSERT_TRUE(train->loss_floor());
  EXPECT_EQ(*train->loss_floor(), sentences().loss_floor(32));
  EXPECT_EQ(train->loss_floor(), test->loss_floor());
  const std::vector<std::int64_t> indices = {0, 1, 2};
  EXPECT_FALSE(train->get(indices, nullptr).data.equal(test->get(indices, nullptr).data));
  EXPECT_EQ(train->fingerprint(),
            open_dataset({.name = "text", .context = 32, .train_size = 50})->fingerprint());
  expect_error<UsageError>([] { open_dataset({.name = "text", .context = 1024, .train_size = 1 << 30}); },
                           {"1073741824 examples", "context of 1024", "4 GiB"});
}

}  // namespace
}  // namespace lockstep
